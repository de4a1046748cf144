"""sums: what each update goes through before it is masked."""

from flwr.client.mod import LocalDpMod

# Weights that leave ±8 are cut off by SecAgg+. So the norm is small, and the noise with it.
mod = LocalDpMod(clipping_norm=0.1, sensitivity=0.2, epsilon=1, delta=1e-5)
