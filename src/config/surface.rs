//! `allow_paths` and `trusted_proxies`: what else of the engine is reachable, and whose word about a client counts.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use http::Method;
use ipnet::IpNet;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::bounds;
use super::error::Problems;
use super::locate::Path;

/// An entry of `allow_paths`; a plain path is short for one that takes POST.
pub(super) struct PathFile {
    path: String,
    method: Option<String>,
}

/// A path of the engine that kvpin doesn't know and passes on all the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedPath {
    /// From the root, plain characters only, no empty, `.` or `..` segment: it has one spelling.
    pub path: String,
    pub method: Method,
}

const METHODS: [Method; 5] = [Method::POST, Method::GET, Method::PUT, Method::PATCH, Method::DELETE];

/// Paths of vLLM 0.32 that are no business of a client, by how they begin, and what each does.
const DANGEROUS: [(&str, &[&str]); 5] = [
    (
        "stops the engine, or changes what it is or holds",
        &[
            "/sleep",
            "/wake_up",
            "/pause",
            "/resume",
            "/abort_requests",
            "/release_kv_cache_memory",
            "/reset_",
            "/scale_elastic_ep",
            "/fault_tolerance",
            "/start_",
            "/stop_profile",
            "/init_weight_transfer_engine",
            "/shutdown_weight_transfer_engine",
            "/update_weight",
            "/finish_weight_update",
            "/weight_checker",
        ],
    ),
    ("runs any code that the engine's workers have", &["/collective_rpc"]),
    (
        "generates past kvpin's pins and counts",
        &["/invocations", "/inference", "/generative_scoring", "/v1/systemone", "/cohere"],
    ),
    ("loads and unloads adapters, from any path of the server", &["/v1/load_lora_adapter", "/v1/unload_lora_adapter"]),
    (
        "tells how the engine is built, configured and used",
        &[
            "/metrics",
            "/load",
            "/version",
            "/server_info",
            "/tokenizer_info",
            "/kv_event_sources",
            "/docs",
            "/redoc",
            "/openapi.json",
            "/static",
            "/is_",
            "/get_world_size",
            "/weight_info",
        ],
    ),
];

impl AllowedPath {
    pub(super) fn warning(&self) -> Option<String> {
        let begins = |prefixes: &[&str]| prefixes.iter().any(|prefix| self.path.starts_with(prefix));
        let (what, _) = DANGEROUS.iter().find(|(_, prefixes)| begins(prefixes))?;
        Some(format!("allow_paths: {} {what}, and every client may ask for it", self.path))
    }
}

impl fmt::Display for AllowedPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.path)
    }
}

pub(super) fn allow_paths(files: Vec<PathFile>, problems: &mut Problems) -> Vec<AllowedPath> {
    let at = Path::default().key("allow_paths");
    if files.len() > bounds::ALLOW_PATHS_MAX {
        let reason = format!("{} paths are more than {}", files.len(), bounds::ALLOW_PATHS_MAX);
        problems.add(at.clone(), reason);
    }
    let mut seen = BTreeSet::new();
    let mut allowed = Vec::new();
    for (i, file) in files.into_iter().enumerate() {
        match allowed_path(file) {
            Err(reason) => problems.add(at.index(i), reason),
            Ok(path) if !seen.insert(path.path.clone()) => {
                problems.add(at.index(i), format!("`{}` is given already", path.path));
            }
            Ok(path) => allowed.push(path),
        }
    }
    allowed
}

fn allowed_path(file: PathFile) -> Result<AllowedPath, String> {
    let PathFile { path, method } = file;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    let has_one_spelling = |rest: &str| rest.split('/').all(|segment| !matches!(segment, "" | "." | ".."));
    if path.len() > bounds::PATH_BYTES_MAX || !path.bytes().all(is_plain) {
        return Err(format!(
            "`{path}` is not a path of up to {} letters, digits and - . _ ~ /",
            bounds::PATH_BYTES_MAX
        ));
    }
    if !path.strip_prefix('/').is_some_and(has_one_spelling) {
        return Err(format!("`{path}` has to begin with one slash, without an empty, `.` or `..` segment"));
    }
    let given = method.as_deref().unwrap_or("POST");
    match METHODS.into_iter().find(|known| known.as_str() == given) {
        Some(method) => Ok(AllowedPath { path, method }),
        None => Err(format!("the method `{given}` is none of POST, GET, PUT, PATCH, DELETE")),
    }
}

pub(super) fn trusted_proxies(texts: &[String], problems: &mut Problems) -> Vec<IpNet> {
    let at = Path::default().key("trusted_proxies");
    if texts.len() > bounds::TRUSTED_PROXIES_MAX {
        let reason = format!("{} networks are more than {}", texts.len(), bounds::TRUSTED_PROXIES_MAX);
        problems.add(at.clone(), reason);
    }
    let mut networks = Vec::new();
    for (i, text) in texts.iter().enumerate() {
        match text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from)) {
            Err(_) => {
                problems
                    .add(at.index(i), format!("`{text}` is not an address or a network, like 10.0.0.7 or 10.0.0.0/8"));
            }
            Ok(network) if network.prefix_len() == 0 => {
                let reason = format!("`{text}` is everybody: any client could say that it is somebody else");
                problems.add(at.index(i), reason);
            }
            Ok(network) => networks.push(network.trunc()),
        }
    }
    networks
}

impl<'de> Deserialize<'de> for PathFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Entry {
            path: String,
            method: Option<String>,
        }

        struct PathOrEntry;

        impl<'de> Visitor<'de> for PathOrEntry {
            type Value = PathFile;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a path like /v1/chat/completions/batch, or a mapping that has `path`")
            }

            fn visit_str<E: Error>(self, path: &str) -> Result<PathFile, E> {
                Ok(PathFile { path: path.to_owned(), method: None })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<PathFile, A::Error> {
                let Entry { path, method } = Entry::deserialize(MapAccessDeserializer::new(map))?;
                Ok(PathFile { path, method })
            }
        }

        deserializer.deserialize_any(PathOrEntry)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;

    fn with(keys: &str) -> String {
        format!("{keys}\nmodels: {{m: {{max_num_seqs: 8, replicas: [http://127.0.0.1:8000]}}}}\n")
    }

    #[test]
    fn paths_and_proxies_are_what_the_file_says() {
        let text = with(
            "allow_paths: [/v1/chat/completions/batch, {path: /v1/x, method: GET}]\n\
             trusted_proxies: [10.1.2.3/8, '::1', 192.0.2.7]",
        );
        let config = Config::from_yaml(&text).unwrap();
        let paths: Vec<_> = config.allow_paths.iter().map(ToString::to_string).collect();
        assert_eq!(paths, ["POST /v1/chat/completions/batch", "GET /v1/x"]);
        let proxies: Vec<_> = config.trusted_proxies.iter().map(ToString::to_string).collect();
        assert_eq!(proxies, ["10.0.0.0/8", "::1/128", "192.0.2.7/32"]);
        assert_eq!(config.warnings(), [""; 0]);
    }

    #[test]
    fn a_path_with_a_second_spelling_is_refused_and_so_is_trust_in_everybody() {
        for (keys, reason) in [
            ("allow_paths: [v1/x]", "allow_paths[0]: `v1/x` has to begin with one slash"),
            ("allow_paths: [/]", "has to begin with one slash, without an empty"),
            ("allow_paths: [/v1/x/]", "has to begin with one slash, without an empty"),
            ("allow_paths: [//x]", "has to begin with one slash, without an empty"),
            ("allow_paths: [/v1/../x]", "has to begin with one slash, without an empty"),
            ("allow_paths: [/v1/%6d]", "is not a path of up to"),
            ("allow_paths: ['/v1/x?y']", "is not a path of up to"),
            ("allow_paths: [{path: /x, method: get}]", "the method `get` is none of POST, GET"),
            ("allow_paths: [/x, {path: /x, method: GET}]", "allow_paths[1]: `/x` is given already"),
            ("trusted_proxies: [here]", "trusted_proxies[0]: `here` is not an address or a network"),
            ("trusted_proxies: [0.0.0.0/0]", "is everybody"),
        ] {
            let error = Config::from_yaml(&with(keys)).expect_err(keys).to_string();
            assert!(error.contains(reason), "{keys}: {error}");
        }
    }

    #[test]
    fn what_an_allowed_path_lets_clients_do_is_said() {
        for (path, said) in [
            ("/sleep", "stops the engine"),
            ("/reset_prefix_cache", "stops the engine"),
            ("/collective_rpc", "any code"),
            ("/invocations", "past kvpin's pins"),
            ("/inference/v1/generate", "past kvpin's pins"),
            ("/v1/load_lora_adapter", "loads and unloads adapters"),
            ("/metrics", "tells how the engine"),
            ("/metricsfoo", "tells how the engine"),
        ] {
            let warnings = Config::from_yaml(&with(&format!("allow_paths: [{path}]"))).unwrap().warnings();
            assert!(warnings.len() == 1 && warnings[0].contains(said), "{path}: {warnings:?}");
        }
    }
}
