"""The processes of the service, each wired of its parts. Nothing else imports worker, doors and planner together."""
