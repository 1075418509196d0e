"""The attacker as a process: `python -m tests.network.hostile.attacker` takes orders line by line, as JSON.

An order has the name of an `attack`, and what `Target` holds. It is answered by `{"begun": true}`, and at the end by
`{"blows": …}` or `{"error": …}`.
"""

import asyncio
import json
import sys
import traceback

from tests.network.hostile import forgers, litter, members, strangers, subscribers
from tests.network.hostile.target import LISTENING, Attack, Target

LINKS: dict[str, Attack] = {**strangers.ATTACKS, **members.ATTACKS, **forgers.ATTACKS, **subscribers.ATTACKS}
ATTACKS = {**LINKS, **litter.ATTACKS, LISTENING: litter.listen}


def main() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        attack = ATTACKS[order.pop("attack")]
        target = Target(**order)
        try:
            asyncio.run(attack(target))  # type: ignore[arg-type]  # attacks are coroutines
            answer: dict[str, object] = {"blows": target.blows}
        except Exception:  # noqa: BLE001  # whoever gave the order gets the error
            answer = {"error": traceback.format_exc()}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
