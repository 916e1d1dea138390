//! Clients and replicas that mean harm.

mod limits;
mod lying_replicas;
mod smuggling;
mod surface;
mod uploads;
