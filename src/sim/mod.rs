//! A modelled vLLM engine, an HTTP server round it, and agents that drive it.
