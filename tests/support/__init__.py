"""Stand-ins and services that the tests share."""
