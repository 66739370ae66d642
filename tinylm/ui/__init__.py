"""The page: what a visitor sees and what `gradio_client` calls."""

import os

# Read once, when gradio is imported: the page sends nothing to anyone.
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
