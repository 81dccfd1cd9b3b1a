//! The cluster that is here, described in a file from which plans of larger ones are made.

use std::path::PathBuf;

use clap::Args;
use epl::Config;

#[derive(Args)]
pub(crate) struct Calibrate {
    /// Options, such as cluster.ranks=2, or offload.device_bytes for the memory of a device.
    #[arg(value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Where the description goes.
    #[arg(long, value_name = "FILE", default_value = "cluster.toml")]
    out: PathBuf,
}

impl Calibrate {
    /// Measures on all ranks; the first one writes.
    pub(crate) fn measure(&self) -> Result<(), Box<dyn std::error::Error>> {
        let config = Config::load(None, &self.settings)?;
        let described = epl::launch(&config, |epl| {
            let (machine, cluster) = (epl.describe()?, epl.cluster());
            let is_first = epl.context().world().rank() == 0;
            let (ranks, hosts) = (cluster.world_size(), cluster.host_num());
            let told = format!("{ranks} ranks on {hosts} host{}", if hosts == 1 { "" } else { "s" });
            Ok(is_first.then(|| (machine.to_toml(), told, [ranks, hosts])))
        })?;
        let Some((text, told, [ranks, hosts])) = described.into_iter().flatten().next() else { return Ok(()) };
        let unknown = match hosts {
            1 => "# There was one host: `outside` is as `inside`, until you give what connects hosts.\n",
            _ if ranks == hosts => {
                "# Hosts had one rank each: `inside` is as `outside`, until you give what connects devices of a host.\n"
            }
            _ => "",
        };
        let text = format!(
            "# {told}, measured by `epl calibrate`. With larger counts it is a larger cluster.\n{unknown}{text}"
        );
        std::fs::write(&self.out, text).map_err(|error| format!("{}: {error}", self.out.display()))?;
        println!("{} describes {told}", self.out.display());
        Ok(())
    }
}
