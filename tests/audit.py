"""Ask OSV (osv.dev) for known security flaws of every package installed here: `make audit`.

Exits with 1 where it names some, with 0 where it names none, and with 0 and one line where it can't be asked.
"""

from __future__ import annotations

import json
import re
import sys
import urllib.request
from importlib.metadata import distributions
from typing import Any

OSV = "https://api.osv.dev"
WAIT = 20  # seconds


def installed() -> dict[str, str]:
    """The version of each package, by its normalised name; without a build's own mark, such as +cpu."""
    found = {}
    for distribution in distributions():
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower()
        found.setdefault(name, distribution.version.partition("+")[0])  # the first on the path is the one imported
    return dict(sorted(found.items()))


def flaws(packages: dict[str, str], service: str) -> dict[str, list[str]]:
    """A line for each flaw that the service knows, by package.

    Raises OSError where the service can't be reached, and ValueError, KeyError or TypeError on an answer that is none.
    """
    queries = [{"package": {"name": n, "ecosystem": "PyPI"}, "version": v} for n, v in packages.items()]
    results = _asked(f"{service}/v1/querybatch", {"queries": queries})["results"]
    found: dict[str, list[str]] = {}
    for name, result in zip(packages, results, strict=True):
        told: set[str] = set()  # one flaw has an entry in each of several lists
        for entry in result.get("vulns", []):
            flaw = _asked(f"{service}/v1/vulns/{entry['id']}")
            names = {flaw["id"], *flaw.get("aliases", [])}
            if "withdrawn" not in flaw and not names & told:
                found.setdefault(name, []).append(_line(flaw, name))
                told |= names
    return found


def _asked(url: str, question: Any = None) -> Any:
    body = None if question is None else json.dumps(question).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=WAIT) as answer:
        return json.load(answer)


def _line(flaw: dict[str, Any], name: str) -> str:
    fixed = {
        event["fixed"]
        for affected in flaw.get("affected", [])
        for span in affected.get("ranges", [])
        for event in span["events"]
        if affected["package"]["name"].lower() == name and span["type"] == "ECOSYSTEM" and "fixed" in event
    }
    told = f"{flaw['id']}: {flaw.get('summary', 'no summary')}"
    return told + (f" (fixed in {', '.join(sorted(fixed))})" if fixed else "")


def main(service: str = OSV) -> int:
    """Print what is known; the exit status."""
    packages = installed()
    try:
        found = flaws(packages, service)
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"Nothing was checked: {service} gives no answer ({error}). Try again where there is a network.")
        return 0
    for name, lines in found.items():
        for line in lines:
            print(f"{name} {packages[name]}: {line}")
    n_flaws = sum(map(len, found.values()))
    print(f"{n_flaws or 'No'} known flaw(s) in {len(packages)} packages, by {service}.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
