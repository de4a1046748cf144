"""What declares the attack, without torch."""

from fedattack.attacks.needs import Needs
from fedattack.attacks.options import Options
from fedattack.base.settings import setting


class ToyOptions(Options):
    """How updates are measured."""

    name = "toy"
    title = "The largest update"
    paper = "nobody's"
    needs = Needs(views=("individual",), protocols=("fedavg",), knowledge=())

    power: float = setting(1.0, "of the norm of an update", gt=0)
