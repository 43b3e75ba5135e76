"""What looks at runs, steps and environments, or makes something of them."""
