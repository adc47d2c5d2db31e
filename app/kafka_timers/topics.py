"""Create and check the service's own topics."""
