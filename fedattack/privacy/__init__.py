"""What noise promises: ε of one release and of a run. Reports, claims and clients all ask here."""

from fedattack.privacy.epsilon import NONE, Epsilon, gaussian_epsilon, laplace_epsilon
from fedattack.privacy.spent import ExampleSampling, PrivacySpent, check_noise, noise_for, privacy_spent

__all__ = [
    "NONE",
    "Epsilon",
    "ExampleSampling",
    "PrivacySpent",
    "check_noise",
    "gaussian_epsilon",
    "laplace_epsilon",
    "noise_for",
    "privacy_spent",
]
