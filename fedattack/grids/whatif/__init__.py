"""What if: the attacks of a finished run, made again on altered copies of its record.

- :mod:`fedattack.grids.whatif.alteration`: what is changed in the messages of a record.
- :mod:`fedattack.grids.whatif.design`: the same attacks on each altered copy, judged beside the run as it was.
- :mod:`fedattack.grids.whatif.page`: both, side by side.
"""
