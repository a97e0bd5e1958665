"""The wire contract: jobs, requests, events, results, records, geometry, limits, errors."""
