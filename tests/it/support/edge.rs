//! kvpin with TLS on its listener, and clients that believe its authority.

use std::net::SocketAddr;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::authority::{Authority, Files};
use super::client::Wire;
use super::h2::Client;
use super::kvpin::{Kvpin, config};
use super::secure::{HOST, secure};

pub struct Edge {
    pub kvpin: Kvpin,
    pub authority: Authority,
    /// The certificate and the key that it shows.
    pub files: Files,
    pub config: Value,
    directory: TempDir,
}

impl Edge {
    pub async fn serve(models: Value) -> Self {
        Edge::with(models, json!({})).await
    }

    /// With `limits`, and when each replica has been seen up.
    pub async fn with(models: Value, limits: Value) -> Self {
        let edge = Edge::launch(models, |config| config["limits"] = limits).await;
        edge.kvpin.until_health("up", |_| true).await;
        edge
    }

    /// With what `change` makes of the configuration. Its `listen` has TLS already.
    pub async fn launch(models: Value, change: impl FnOnce(&mut Value)) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let authority = Authority::new("the tests' authority");
        let files = authority.issue(&[HOST]).write(directory.path(), "server");
        let mut config = config(models);
        config["listen"] = listener(&files);
        change(&mut config);
        Edge { kvpin: Kvpin::launch(&config).await, authority, files, config, directory }
    }

    /// For files of the test's own.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub fn address(&self) -> SocketAddr {
        self.kvpin.address
    }

    /// A client that speaks HTTP/2.
    pub async fn h2(&self) -> Client {
        Client::connect(self.address(), self.authority.client(&["h2"])).await
    }

    /// A client that speaks HTTP/1.1.
    pub async fn h1(&self) -> Wire {
        Wire::over(secure(self.address(), self.authority.client(&["http/1.1"])).await)
    }
}

/// A listener on a port from the kernel.
pub fn listener(files: &Files) -> Value {
    json!({ "address": "127.0.0.1:0", "tls": { "certificate": files.certificate, "key": files.key } })
}
