"""What the page and its API compute: generators over plain Python values that know nothing of gradio.

Each yields `Update`s that grow: `result` is the API's JSON object, `page` is what only the page shows. Lists are new
at every update, and only ever get longer within one run. One module a tab.
"""

from tinylm.ui.service.common import Service, Update

__all__ = ["Service", "Update"]
