from dataclasses import replace

from simulations.frameworks.fedavg import FRAMEWORK as FEDAVG

FRAMEWORK = replace(FEDAVG, name="toy-avg")
