"""What defences cost and what they buy: attack success against loss of quality, over a ladder of strengths of each.

Cui et al. 2023 (RecUP-FL), Figures 2–5 and 8–13 and Table 1, on any preset. What runs it is
:func:`fedattack.grids.tradeoff.design.tradeoff`.
"""
