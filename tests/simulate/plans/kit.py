"""Small domain plans in files."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from penstock.authority.components.plans.domain_plan import LoadedPlan, load_domain_plan
from penstock.policy.language.requests import ACTION_ID, RESOURCE_TYPE, SUBJECT_TYPE
from penstock.simulate.plans.domain import simulated_key

ROLES = """role ER(n: integer);
role DR(n: integer);
role IR(n: integer);
appointment helper(n: integer);
activate ER(n) if appointment helper(n) *;
activate DR(n) if appointment helper(n) *;
activate IR(n) if appointment helper(n) *;
"""
_ATTRIBUTES = f"""    attribute does {{ category = action id = "{ACTION_ID}" type = string }}
    attribute kind {{ category = resource id = "{RESOURCE_TYPE}" type = string }}
    attribute who {{ category = subject id = "{SUBJECT_TYPE}" type = string }}
    attribute rank {{ category = subject id = "rank" type = integer }}
"""


@dataclass
class SmallDomain:
    """A domain with a PAP, a PEP that asks about `door/open`, decision points and an information point for `rank`."""

    #: by policy: its algorithm, and rules as text
    policies: Mapping[str, tuple[str, str]] = field(
        default_factory=lambda: {"doors": ("deny-unless-permit", "rule high { permit condition rank >= 3 }")}
    )
    #: the policies of each decision role, by its number
    deciding: Mapping[int, tuple[str, ...]] = field(default_factory=lambda: {1: ("doors",)})
    #: decision roles whose requests and answers are on the PEP's topics
    connected: frozenset[int] = frozenset({1, 2})
    #: decision roles that the information point answers
    informed: frozenset[int] = frozenset({1, 2})
    appointed: frozenset[str] = frozenset({"pep", "pdp-1", "pdp-2", "pip"})
    #: the type of the subjects that the information point knows, and that policies name
    known_type: str = "user"
    pap: bool = True
    #: whether the information point is in a component file of its own, `pip.toml`
    apart: bool = False
    #: seconds in which components must apply a change of roles
    apply_within: float = 10.0
    mode: str = "first"
    resource: str = "door"

    def text(self) -> str:
        """Return the plan."""
        names = [*(["pap"] if self.pap else []), "pep", *(f"pdp-{n}" for n in self.deciding), "pip"]
        principals = "\n".join(f'{one} = "{simulated_key("test " + one).principal}"' for one in [*names, "boss"])
        deciding = "\n".join(self._decision_role(n, policies) for n, policies in self.deciding.items())
        numbers = {"pep": 1, "pip": 1, **{f"pdp-{n}": n for n in self.deciding}}
        appointments = "\n".join(f'{one} = ["helper({n})"]' for one, n in numbers.items() if one in self.appointed)
        reading = "".join(f', "DREP_{n}"' if n > 1 else "" for n in self.deciding if n in self.connected)
        asking = "".join(f', "DREQ_{n}", "QPEP_{n}"' if n > 1 else "" for n in self.deciding if n in self.connected)
        points = "\n".join(f'[components.pdp-{n}]\nrole = "DR({n})"\nkey = "pdp-{n}.key"' for n in self.deciding)
        knowing = "".join(f', "QPDP_{n}", "IREQ_{n}"' for n in self.deciding if n in self.informed)
        answering = "".join(f', "IREP_{n}"' for n in self.deciding if n in self.informed)
        informing = "" if self.apart else self._informing()
        pap = '[components.pap]\nkind = "PAP"\nkey = "pap.key"\n' if self.pap else ""
        return f"""name = "house"
administrators = ["{"pap" if self.pap else "boss"}"]
role_policy = "house.roles"
policies = ["*.policy"]
apply_within = {self.apply_within}
[levels]
lifespan = 2
[names]
{principals}
[roles."ER(1)"]
kind = "PEP"
write = ["APEP_1", "QPEP_1", "DREQ_1"{asking}]
read = ["RPEP_1", "DREP_1"{reading}]
combining.decision = "{self.mode}"
{deciding}
[roles."IR(1)"]
kind = "PIP"
write = ["APIP_1"{answering}]
read = ["RPIP_1"{knowing}]
[appointments]
{appointments}
{pap}
[components.pep]
role = "ER(1)"
key = "pep.key"
actions = ["{self.resource}/open"]
{points}
{informing}"""

    def _informing(self) -> str:
        return f"""[sources.people]
file = "people.csv"
of = "subject"
type = "{self.known_type}"
attributes = ["rank"]
[components.pip]
role = "IR(1)"
key = "pip.key"
sources = ["people"]
"""

    def _decision_role(self, number: int, policies: tuple[str, ...]) -> str:
        topic = number if number in self.connected else number + 10
        listed = ", ".join(f'"house.{one}"' for one in policies)
        return f"""[roles."DR({number})"]
kind = "PDP"
write = ["APDP_{number}", "QPDP_{number}", "DREP_{topic}", "IREQ_{number}"]
read = ["RPDP_{number}", "QPEP_{topic}", "DREQ_{topic}", "IREP_{number}"]
combining = {{ policy = "deny-overrides", information = "first" }}
policies = [{listed}]"""

    def load(self, folder: Path) -> LoadedPlan:
        """Write the plan and what it names to a folder, and load it."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "house.toml").write_text(self.text())
        (folder / "house.roles").write_text(ROLES)
        if self.apart:
            names = "".join(f'{one} = "{simulated_key("test " + one).principal}"\n' for one in ("pap", "pip"))
            head = f'name = "house"\nadministrators = ["pap"]\n[names]\n{names}'
            (folder / "pip.toml").write_text(head + self._informing() + 'kind = "PIP"\n')
        for name, (algorithm, rules) in self.policies.items():
            target = 'target clause kind == "door" and does == "open"'
            policy = f'policy {name} version "1.0" {{ apply {algorithm} {target} {rules} }}'
            (folder / f"{name}.policy").write_text(f"namespace house {{\n{_ATTRIBUTES}    {policy}\n}}\n")
        return load_domain_plan(str(folder / "house.toml"))
