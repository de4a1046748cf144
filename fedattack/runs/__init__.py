"""From a preset to a judged report: presets and their settings, simulations, attacks on run folders."""
