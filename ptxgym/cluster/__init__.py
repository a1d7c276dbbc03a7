"""The evaluation service: many evaluations on many machines, one interface whatever the backend."""
