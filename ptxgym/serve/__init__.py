"""The evaluation service over HTTP: `ptxgym serve`, and the client behind `device="http://host:port"`."""
