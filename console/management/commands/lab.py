"""`manage.py lab`: look at the running demo's lab, change its links and its load."""

from __future__ import annotations

import json
import math
import urllib.error
import urllib.parse
import urllib.request
from argparse import ArgumentParser, ArgumentTypeError
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from console import demo, embedded


class Command(BaseCommand):
    help = (
        "Read or change the demo's lab: `lab status`, `lab link 'A->B' GBPS`, `lab rate RPS`, "
        "`lab mix MU SIGMA`."
    )
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        verbs.add_parser("status", help="links, engines and load as JSON")
        link = verbs.add_parser("link", help="set a link's capacity")
        link.add_argument("link", metavar="A->B")
        link.add_argument("gbps", type=_amount)
        rate = verbs.add_parser("rate", help="set the load's request rate")
        rate.add_argument("rate_rps", type=_amount)
        mix = verbs.add_parser("mix", help="set the lognormal mix of the load's prompt lengths")
        mix.add_argument("mu", type=_amount, help="mean of ln(tokens)")
        mix.add_argument("sigma", type=_amount, help="deviation of ln(tokens)")
        for parser_ in (rate, mix):
            parser_.add_argument("--cluster", help="PD cluster that gets it, where there are two")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            places = demo.places(embedded.state_dir())
        except FileNotFoundError:
            raise CommandError("no demo runs here: start one with `manage.py up --demo`") from None
        loads = {name: url for name, url in places.items() if name.startswith("load")}
        if options["verb"] == "status":
            answer: Any = {
                "links": _call("GET", f"{places['admin']}/links"),
                "engines": _call("GET", f"{places['admin']}/engines"),
                "load": {name: _call("GET", f"{url}/summary") for name, url in loads.items()},
            }
        elif options["verb"] == "link":
            name = urllib.parse.quote(options["link"])
            answer = _call("PUT", f"{places['admin']}/links/{name}", {"gbps": options["gbps"]})
        else:
            wanted = ("rate_rps",) if options["verb"] == "rate" else ("mu", "sigma")
            url = _load_url(loads, options["cluster"])
            answer = _call("PUT", f"{url}/{options['verb']}", {k: options[k] for k in wanted})
        self.stdout.write(json.dumps(answer, indent=1))


def _load_url(loads: dict[str, str], cluster: str | None) -> str:
    """The load of one PD cluster; it need not be named where there is one."""
    by_cluster = {demo.cluster_of_load(name): url for name, url in loads.items()}
    if cluster is None and len(by_cluster) == 1:
        return next(iter(by_cluster.values()))
    if cluster not in by_cluster:
        known = ", ".join(sorted(by_cluster))
        raise CommandError(f"--cluster {cluster}: give one of {known}", returncode=2)
    return by_cluster[cluster]


def _call(method: str, url: str, body: Any = None) -> Any:
    request = urllib.request.Request(
        url,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as exc:
        raise CommandError(f"the lab refuses: {_message(exc.read())}", returncode=2) from None
    except OSError as exc:
        raise CommandError(
            f"the lab does not answer at {url} ({exc}): is `manage.py up --demo` running?"
        ) from None


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")


def _amount(text: str) -> float:
    try:
        amount = float(text)
    except ValueError:
        amount = math.nan
    if not 0.0 <= amount < math.inf:
        raise ArgumentTypeError(f"{text!r}: must be a number, 0 or more")
    return amount
