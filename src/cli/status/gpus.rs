//! The GPUs of the machine, a line each.

use crate::admin::gpus::GpuStatus;

use super::card::{Ink, yellow};

/// What is known of it; a figure that isn't is left out.
pub fn line(gpu: &GpuStatus, ink: Ink) -> String {
    let name = gpu.name.as_deref().unwrap_or("unknown");
    let begin = format!("  GPU {} {name}", gpu.index);
    if gpu.lost {
        return format!("{begin}: {}", yellow("lost", ink));
    }
    let figures = [
        gpu.utilization_percent.map(|share| format!("busy {share} %")),
        of(gpu.memory_used_bytes.map(gib), gpu.memory_total_bytes.map(gib)).map(|text| format!("memory {text} GiB")),
        of(gpu.power_watts, gpu.power_limit_watts).map(|text| format!("{text} W")),
        gpu.temperature_celsius.map(|degrees| format!("{degrees} °C")),
        gpu.sm_clock_mhz.map(|clock| format!("{clock} MHz")),
    ];
    let figures: Vec<_> = figures.into_iter().flatten().collect();
    if figures.is_empty() { begin } else { format!("{begin}: {}", figures.join(", ")) }
}

/// Such as `61 of 139`.
fn of(value: Option<f64>, most: Option<f64>) -> Option<String> {
    let most = most.map_or(String::new(), |most| format!(" of {most:.0}"));
    value.map(|value| format!("{value:.0}{most}"))
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / (1_u64 << 30) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_a_line_of_what_is_known_of_it() {
        let gpu = GpuStatus {
            index: 3,
            name: Some("NVIDIA H200".to_owned()),
            utilization_percent: Some(87),
            memory_used_bytes: Some(61 << 30),
            memory_total_bytes: Some(139 << 30),
            power_watts: Some(411.6),
            power_limit_watts: Some(700.0),
            temperature_celsius: Some(64),
            sm_clock_mhz: Some(1980),
            ..GpuStatus::default()
        };
        let said = "  GPU 3 NVIDIA H200: busy 87 %, memory 61 of 139 GiB, 412 of 700 W, 64 °C, 1980 MHz";
        assert_eq!(line(&gpu, Ink::Plain), said);
        assert_eq!(line(&GpuStatus { lost: true, ..gpu }, Ink::Plain), "  GPU 3 NVIDIA H200: lost");
        assert_eq!(line(&GpuStatus::default(), Ink::Plain), "  GPU 0 unknown");
    }
}
