"""The production profile on one machine (`make run-production`): for trying and testing it whole."""
