//! Families of the GPUs: name, kind, help, labels and source side by side. A figure that a GPU doesn't tell has no series.

use crate::gpu::{Figures, Gpu};

use super::super::{View, gpus};
use super::{Family, Kind};

/// Label: gpu, its number, which no reload changes.
const GPU: &[Family<Gpu>] = &[
    Family {
        name: "kvpin_gpu_lost",
        kind: Kind::Gauge,
        help: "1 if the GPU has fallen off the bus or needs a reset, else 0.",
        label: "",
        values: |gpu| vec![("", f64::from(u8::from(gpu.is_lost)))],
    },
    Family {
        name: "kvpin_gpu_utilization_ratio",
        kind: Kind::Gauge,
        help: "Share of the time that something ran on the GPU.",
        label: "",
        values: |gpu| figure(gpu, |figures| Some(f64::from(figures.utilization_percent?) / 100.0)),
    },
    Family {
        name: "kvpin_gpu_memory_used_bytes",
        kind: Kind::Gauge,
        help: "Memory of the GPU that is allocated, by whomever.",
        label: "",
        values: |gpu| figure(gpu, |figures| Some(figures.memory_used_bytes? as f64)),
    },
    Family {
        name: "kvpin_gpu_memory_size_bytes",
        kind: Kind::Gauge,
        help: "Memory that the GPU has.",
        label: "",
        values: |gpu| figure(gpu, |figures| Some(figures.memory_total_bytes? as f64)),
    },
    Family {
        name: "kvpin_gpu_power_watts",
        kind: Kind::Gauge,
        help: "Power that the GPU draws.",
        label: "",
        values: |gpu| figure(gpu, |figures| figures.power_watts),
    },
    Family {
        name: "kvpin_gpu_power_limit_watts",
        kind: Kind::Gauge,
        help: "Power that the GPU may draw.",
        label: "",
        values: |gpu| figure(gpu, |figures| figures.power_limit_watts),
    },
    Family {
        name: "kvpin_gpu_temperature_celsius",
        kind: Kind::Gauge,
        help: "Temperature of the GPU's chip.",
        label: "",
        values: |gpu| figure(gpu, |figures| figures.temperature_celsius.map(f64::from)),
    },
    Family {
        name: "kvpin_gpu_sm_clock_hertz",
        kind: Kind::Gauge,
        help: "Clock of the GPU's multiprocessors.",
        label: "",
        values: |gpu| figure(gpu, |figures| figures.sm_clock_mhz.map(hertz)),
    },
    Family {
        name: "kvpin_gpu_memory_clock_hertz",
        kind: Kind::Gauge,
        help: "Clock of the GPU's memory.",
        label: "",
        values: |gpu| figure(gpu, |figures| figures.memory_clock_mhz.map(hertz)),
    },
];

/// Labels: gpu, uuid, name.
const INFO: Family<Gpu> = Family {
    name: "kvpin_gpu_info",
    kind: Kind::Gauge,
    help: "1, with what the GPU is called.",
    label: "",
    values: |_| vec![("", 1.0)],
};

/// Labels: model, replica, gpu. For joins: what a GPU does says nothing of which replicas run on it.
const OF_REPLICA: Family<u32> = Family {
    name: "kvpin_replica_gpu",
    kind: Kind::Gauge,
    help: "1 for each GPU that the replica runs on, as configured.",
    label: "",
    values: |_| vec![("", 1.0)],
};

pub(super) fn render(view: &View, page: &mut String) {
    for family in GPU {
        let mut series = family.series(&["gpu"]);
        for gpu in &view.gpus.gpus {
            series.write(page, gpu, &[&gpu.index.to_string()]);
        }
    }
    let mut series = INFO.series(&["gpu", "uuid", "name"]);
    for gpu in &view.gpus.gpus {
        let [uuid, name] = [&gpu.uuid, &gpu.name].map(|text| text.as_deref().unwrap_or_default());
        series.write(page, gpu, &[&gpu.index.to_string(), uuid, name]);
    }
    let mut series = OF_REPLICA.series(&["model", "replica", "gpu"]);
    for (model, _) in &view.models {
        for replica in model.gpus.keys() {
            for index in gpus::of_replica(model, replica, &view.gpus) {
                series.write(page, &index, &[&model.name, replica, &index.to_string()]);
            }
        }
    }
}

fn figure(gpu: &Gpu, figure: impl Fn(&Figures) -> Option<f64>) -> Vec<(&'static str, f64)> {
    figure(&gpu.figures).map(|value| ("", value)).into_iter().collect()
}

fn hertz(mhz: u32) -> f64 {
    f64::from(mhz) * 1e6
}
