//! The YAML surface, as serde reads it: what was written, before any default or check.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

use super::AdmissionMode;
use super::Balancing;
use super::access_log::AccessLogFile;
use super::gpus::GpuFile;
use super::size::Bytes;
use super::surface::PathFile;
use crate::tls::MinVersion;

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct File {
    pub(super) listen: Option<Listen>,
    pub(super) keys_file: Option<String>,
    pub(super) allow_anonymous: Option<bool>,
    pub(super) admin: Option<String>,
    pub(super) admin_token_file: Option<String>,
    pub(super) default_model: Option<String>,
    pub(super) session_headers: Vec<String>,
    pub(super) decision_headers: Option<bool>,
    pub(super) allow_paths: Vec<PathFile>,
    pub(super) trusted_proxies: Vec<String>,
    pub(super) scrape_interval_ms: Option<u64>,
    pub(super) shutdown_grace_s: Option<u64>,
    pub(super) state_file: Option<String>,
    pub(super) state_interval_s: Option<u64>,
    pub(super) access_log: AccessLogFile,
    pub(super) nvml: Option<String>,
    pub(super) health: HealthFile,
    pub(super) limits: LimitsFile,
    pub(super) models: Ordered<ModelFile>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct HealthFile {
    pub(super) interval_ms: Option<u64>,
    pub(super) timeout_ms: Option<u64>,
    pub(super) failures: Option<u64>,
    pub(super) successes: Option<u64>,
    pub(super) backoff_max_ms: Option<u64>,
    pub(super) hung_s: Option<u64>,
    pub(super) ramp_s: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct LimitsFile {
    pub(super) body_bytes_max: Option<Bytes>,
    pub(super) head_bytes_max: Option<Bytes>,
    pub(super) head_timeout_s: Option<u64>,
    pub(super) keepalive_timeout_s: Option<u64>,
    pub(super) body_timeout_s: Option<u64>,
    pub(super) body_rate_min_bytes_per_s: Option<u64>,
    pub(super) write_timeout_s: Option<u64>,
    pub(super) connect_timeout_ms: Option<u64>,
    pub(super) replay_bytes_max: Option<Bytes>,
    pub(super) replay_memory_bytes_max: Option<Bytes>,
    pub(super) history_wait_ms: Option<u64>,
    pub(super) response_timeout_s: Option<u64>,
    pub(super) ping_interval_s: Option<u64>,
    pub(super) connections_max: Option<u64>,
    pub(super) connections_per_address_max: Option<u64>,
    pub(super) streams_max: Option<u64>,
    pub(super) tries_max: Option<u64>,
    pub(super) breaks_max: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ModelFile {
    pub(super) aliases: Vec<AliasFile>,
    pub(super) affinity: Option<bool>,
    pub(super) balancing: Option<Balancing>,
    pub(super) max_num_seqs: Option<u64>,
    pub(super) spill_threshold: Option<SpillThresholdFile>,
    pub(super) admission: Option<AdmissionMode>,
    pub(super) kv_cache_tokens: Option<u64>,
    pub(super) held_max: Option<u64>,
    pub(super) hold_max_s: Option<u64>,
    pub(super) client_pins: Option<bool>,
    pub(super) send_session_id: Option<bool>,
    pub(super) upstream_key_file: Option<String>,
    pub(super) conversations_max: Option<u64>,
    pub(super) conversation_idle_s: Option<u64>,
    pub(super) replicas: Vec<ReplicaFile>,
}

/// An entry of `replicas`; a plain URL is short for one with `url` only.
#[derive(Default)]
pub(super) struct ReplicaFile {
    pub(super) url: String,
    pub(super) name: Option<String>,
    pub(super) data_parallel_size: Option<u64>,
    pub(super) drain: Option<bool>,
    pub(super) gpus: Vec<GpuFile>,
    pub(super) ca_file: Option<String>,
    pub(super) client_certificate: Option<String>,
    pub(super) client_key: Option<String>,
}

/// An entry of `aliases`; a plain name is short for one without `upstream`.
pub(super) struct AliasFile {
    pub(super) name: String,
    pub(super) upstream: Option<String>,
}

/// One listener or a list of them.
pub(super) enum Listen {
    One(ListenerFile),
    Many(Vec<ListenerFile>),
}

/// An entry of `listen`; a plain address is short for one without `tls`.
pub(super) struct ListenerFile {
    pub(super) address: String,
    pub(super) tls: Option<TlsFile>,
}

/// `certificate` and `key` are short for a list of one.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct TlsFile {
    pub(super) certificate: Option<String>,
    pub(super) key: Option<String>,
    pub(super) certificates: Option<Vec<CertificateFile>>,
    pub(super) client_ca: Option<String>,
    pub(super) min_version: Option<MinVersionFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CertificateFile {
    pub(super) certificate: String,
    pub(super) key: String,
}

/// YAML takes an unquoted version for a number.
pub(super) struct MinVersionFile(pub(super) MinVersion);

pub(super) enum SpillThresholdFile {
    Auto,
    Fixed(u64),
}

/// A mapping in the order of the file. [`super::locate::check_form`] has refused a key that comes twice.
pub(super) struct Ordered<T>(pub(super) Vec<(String, T)>);

impl<T> Default for Ordered<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Ordered<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Entries<T> {
            type Value = Ordered<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a mapping of names")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Ordered<T>, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Ordered(entries))
            }
        }

        deserializer.deserialize_map(Entries(PhantomData))
    }
}

impl<'de> Deserialize<'de> for Listen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Addresses;

        impl<'de> Visitor<'de> for Addresses {
            type Value = Listen;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an address like 127.0.0.1:8080, a mapping that has `address`, or a list of these")
            }

            fn visit_str<E: Error>(self, address: &str) -> Result<Listen, E> {
                Ok(Listen::One(ListenerFile { address: address.to_owned(), tls: None }))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Listen, A::Error> {
                ListenerFile::deserialize(MapAccessDeserializer::new(map)).map(Listen::One)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Listen, A::Error> {
                let mut listeners = Vec::new();
                while let Some(listener) = seq.next_element()? {
                    listeners.push(listener);
                }
                Ok(Listen::Many(listeners))
            }
        }

        deserializer.deserialize_any(Addresses)
    }
}

impl<'de> Deserialize<'de> for ListenerFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Entry {
            address: String,
            tls: Option<TlsFile>,
        }

        struct AddressOrEntry;

        impl<'de> Visitor<'de> for AddressOrEntry {
            type Value = ListenerFile;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an address like 127.0.0.1:8080, or a mapping that has `address`")
            }

            fn visit_str<E: Error>(self, address: &str) -> Result<ListenerFile, E> {
                Ok(ListenerFile { address: address.to_owned(), tls: None })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ListenerFile, A::Error> {
                let Entry { address, tls } = Entry::deserialize(MapAccessDeserializer::new(map))?;
                Ok(ListenerFile { address, tls })
            }
        }

        deserializer.deserialize_any(AddressOrEntry)
    }
}

impl<'de> Deserialize<'de> for MinVersionFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Version;

        impl Visitor<'_> for Version {
            type Value = MinVersionFile;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("1.2 or 1.3")
            }

            fn visit_str<E: Error>(self, version: &str) -> Result<MinVersionFile, E> {
                match version {
                    "1.2" => Ok(MinVersionFile(MinVersion::Tls12)),
                    "1.3" => Ok(MinVersionFile(MinVersion::Tls13)),
                    other => Err(E::invalid_value(Unexpected::Str(other), &self)),
                }
            }

            fn visit_f64<E: Error>(self, version: f64) -> Result<MinVersionFile, E> {
                self.visit_str(&version.to_string())
            }
        }

        deserializer.deserialize_any(Version)
    }
}

impl<'de> Deserialize<'de> for ReplicaFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Entry {
            url: String,
            name: Option<String>,
            data_parallel_size: Option<u64>,
            drain: Option<bool>,
            #[serde(default)]
            gpus: Vec<GpuFile>,
            ca_file: Option<String>,
            client_certificate: Option<String>,
            client_key: Option<String>,
        }

        struct UrlOrEntry;

        impl<'de> Visitor<'de> for UrlOrEntry {
            type Value = ReplicaFile;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a URL like http://127.0.0.1:8000, or a mapping that has `url`")
            }

            fn visit_str<E: Error>(self, url: &str) -> Result<ReplicaFile, E> {
                Ok(ReplicaFile { url: url.to_owned(), ..ReplicaFile::default() })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ReplicaFile, A::Error> {
                let Entry { url, name, data_parallel_size, drain, gpus, ca_file, client_certificate, client_key } =
                    Entry::deserialize(MapAccessDeserializer::new(map))?;
                Ok(ReplicaFile { url, name, data_parallel_size, drain, gpus, ca_file, client_certificate, client_key })
            }
        }

        deserializer.deserialize_any(UrlOrEntry)
    }
}

impl<'de> Deserialize<'de> for AliasFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Entry {
            name: String,
            upstream: Option<String>,
        }

        struct NameOrEntry;

        impl<'de> Visitor<'de> for NameOrEntry {
            type Value = AliasFile;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name, or a mapping that has `name`")
            }

            fn visit_str<E: Error>(self, name: &str) -> Result<AliasFile, E> {
                Ok(AliasFile { name: name.to_owned(), upstream: None })
            }

            /// A name may consist of digits.
            fn visit_u64<E: Error>(self, name: u64) -> Result<AliasFile, E> {
                self.visit_str(&name.to_string())
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<AliasFile, A::Error> {
                let entry = Entry::deserialize(MapAccessDeserializer::new(map))?;
                Ok(AliasFile { name: entry.name, upstream: entry.upstream })
            }
        }

        deserializer.deserialize_any(NameOrEntry)
    }
}

impl<'de> Deserialize<'de> for SpillThresholdFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AutoOrTurns;

        impl Visitor<'_> for AutoOrTurns {
            type Value = SpillThresholdFile;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`auto` or a number of turns")
            }

            fn visit_str<E: Error>(self, word: &str) -> Result<SpillThresholdFile, E> {
                match word {
                    "auto" => Ok(SpillThresholdFile::Auto),
                    other => Err(E::invalid_value(Unexpected::Str(other), &self)),
                }
            }

            fn visit_u64<E: Error>(self, turns: u64) -> Result<SpillThresholdFile, E> {
                Ok(SpillThresholdFile::Fixed(turns))
            }
        }

        deserializer.deserialize_any(AutoOrTurns)
    }
}
