//! YAML text to a validated configuration.
