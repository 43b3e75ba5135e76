"""Games: several policies that act in one environment, with or against each other."""
