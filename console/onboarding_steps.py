"""What people type on the way to telemetry: commands, and files to start from. Pure.

Every file is one that the agent's own reader accepts; addresses are to be filled in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from django.utils.translation import gettext as _

from console import phrases
from console.onboarding_rows import Inventory, Site

MANAGE: Final = "python3 -m uv run manage.py"
AGENT: Final = "python -m telemetry.agent --config agent.toml"
TRY: Final = f"{AGENT} --once --print"
INSTALL: Final = "python3 -m pip install ."
STATUS: Final = "systemctl status prfaas-agent"
READ_ENGINE: Final = f"curl -s http://HOST:8000/metrics | {MANAGE} canonical -"
_EXAMPLES: Final = 3
"""So many instances are written out in a file; the others are told of in a comment."""


@dataclass(frozen=True)
class Step:
    """One thing to do. `command` is typed as it stands; with `file` it is that file's content."""

    text: str
    command: str = ""
    file: str = ""
    done: bool | None = None


def start_path(
    inventory: Inventory, *, console_url: str, has_token: bool, has_agent: bool
) -> list[Step]:
    """From a registered fleet to its first figures; steps that are seen to be done say so."""
    fleet = inventory.fleet
    senders = [name for name in inventory.sites if _links_from(inventory, name)]
    site = next(iter(senders or inventory.sites))
    others = [name for name in inventory.sites if name != site]
    more = ""
    if others:
        more = " " + _("Write one for %(others)s as well: one agent a site.") % {
            "others": listed(others)
        }
    return [
        Step(_("Describe the fleet. %(fleet)s is registered.") % {"fleet": fleet}, done=True),
        Step(
            _(
                "Issue a token for the agent, into a file beside its "
                "configuration. Its secret is printed once."
            ),
            token_command(f"agent-{site}", fleet),
            done=True if has_token else None,
        ),
        Step(
            _("Write agent.toml on a host of %(site)s that reaches its engines and this console.")
            % {"site": site}
            + more,
            agent_toml(inventory, site, console_url),
            file="agent.toml",
        ),
        Step(
            _(
                "Install the agent there, from a checkout or a wheel of this "
                "version (docs/agent.md)."
            ),
            INSTALL,
        ),
        Step(_("Read everything once without sending it: see what is found and what is not."), TRY),
        Step(
            _("Start it. It keeps what it read while the console is away."), AGENT, done=has_agent
        ),
        Step(_("First figures stand here and on the overview within seconds."), done=has_agent),
    ]


def first_fleet() -> list[Step]:
    """Without a fleet: how to describe one."""
    return [
        Step(
            _(
                "Describe the fleet in scenario.toml: its clusters, instances, "
                "links and profiles, as docs/contracts.md (Scenario) shows."
            )
        ),
        Step(_("Register it."), f"{MANAGE} fleet apply scenario.toml"),
        Step(_("This page then names what comes next: a token, agent.toml, the agent.")),
    ]


def token_command(name: str, fleet: str, scope: str = "ingest") -> str:
    bound = f" --fleet {fleet}" if fleet else ""
    what = "agent" if scope == "ingest" else "gate"
    return f"{MANAGE} token issue {name} --scope {scope}{bound} > {what}.token"


def agent_toml(inventory: Inventory, cluster: str, console_url: str) -> str:
    """A whole agent.toml for one cluster: its instances, its gates, the links it sends on."""
    site = inventory.sites[cluster]
    parts = [
        f'agent = "{inventory.fleet}-{cluster}"\n'
        f'console_url = "{console_url}"\n'
        'token_file = "agent.token"\n'
        'spool_dir = "spool"\n',
        instances_toml(inventory.fleet, cluster, site, range(1, site.instances + 1)),
    ]
    if site.kind == "pd":
        gates = [path for path in inventory.gates if path.split("/")[1] == cluster]
        parts += [gate_toml(path) for path in gates or [f"{inventory.fleet}/{cluster}/gw-1"]]
    parts += [link_toml(link, inventory.links[link]) for link in _links_from(inventory, cluster)]
    return "\n".join(parts)


def instances_toml(fleet: str, cluster: str, site: Site, numbers: Sequence[int]) -> str:
    """`[[instances]]` of one cluster, the first few; the others as a comment."""
    written = [_instance_toml(fleet, cluster, site, n) for n in numbers[:_EXAMPLES]]
    if len(numbers) > _EXAMPLES:
        left = len(numbers) - _EXAMPLES
        written.append(f"# {left} more like {'this one' if left == 1 else 'these'}\n")
    return "\n".join(written)


def _instance_toml(fleet: str, cluster: str, site: Site, n: int) -> str:
    is_prefill = site.kind == "prefill" or (site.n_prefill is not None and n <= site.n_prefill)
    return (
        "[[instances]]\n"
        f'id = "{fleet}/{cluster}/{site.profile}-{n}"\n'
        f'role = "{"prefill" if is_prefill else "decode"}"\n'
        f'url = "http://HOST-{n}:8000/metrics"\n'
    )


def gate_toml(path: str) -> str:
    return f'[[routers]]\nid = "{path}"\nurl = "http://GATE:8100/metrics"\n'


def link_toml(link: str, gbps: float) -> str:
    return (
        "[[links]]\n"
        f'id = "{link}"\n'
        'source = "interface"\n'
        'interface = "eth0"\n'
        'measured_layer = "interface"\n'
        f"capacity_gbps = {gbps}\n"
    )


def _links_from(inventory: Inventory, cluster: str) -> list[str]:
    return [link for link in inventory.links if link.partition("->")[0] == cluster]


def listed(names: Sequence[str]) -> str:
    return str(phrases.listed(names, _EXAMPLES))
