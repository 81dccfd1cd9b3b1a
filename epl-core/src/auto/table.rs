//! What was measured, and what is asked of it.

use std::fmt::Debug;

use super::calibration::Calibration;
use super::sample::Sample;
use super::together::together;
use super::{calibrate, columns, rates, speeds, whole_layers};
use crate::config::Config;
use crate::cost::{ClusterDevices, HostUpdates, Machine, Network, Rates};
use crate::error::{Error, Result};
use crate::launch::Epl;
use crate::memory::{OptimizerState, Tier, Tiers};
use crate::model::place::Place;
use crate::model::segment::Model;
use crate::optim::OptimizerConfig;
use crate::search::{self, Choice, Columns, Found, Judge};
use crate::topology::cluster::Cluster;

/// What a model's segments, an optimizer and the collectives of a world take: measured once, asked for any layout. Made by
/// [`Epl::cost_table`].
#[derive(Clone, Debug)]
pub struct CostTable {
    cluster: Cluster,
    columns: Columns,
    network: Network,
    devices: ClusterDevices,
    /// The speeds that were given.
    speeds: Option<Vec<usize>>,
    /// Whether a description says what its devices and links are.
    is_described: bool,
    rates: Rates,
    /// The tiers under which an update was measured of state that is put away with more.
    away: Option<Tiers>,
    state: OptimizerState,
    rows: usize,
    lanes: usize,
    /// Whether activations were measured.
    is_bounded: bool,
    /// Whether segments were looked at that can run in slices.
    discovers: bool,
    /// The layers that were whole, as was given.
    whole_layers: Option<Vec<String>>,
}

impl CostTable {
    /// Measures in a world, where layers are divided in these ways; where links are described, no collective, and the file of
    /// `auto.calibration` stays as it is. Collective.
    pub(super) fn measured<M: Model, O: OptimizerConfig>(
        epl: &Epl,
        divisions: Vec<(usize, usize)>,
        model: &mut dyn FnMut(&Place) -> M,
        optimizer: &O,
        sample: &mut Sample<'_, M::Batch>,
        links: Option<&Machine>,
    ) -> Result<Self> {
        let (mut measured, mut known, world) = (Columns::new(), Calibration::read(epl)?, epl.world());
        let (given, mut seconds) = (speeds::given(epl)?, 0.0);
        for division in divisions {
            let surveyed = columns::survey(epl, (division, None), model, sample.rows())
                .and_then(|surveyed| surveyed.laid_for(optimizer, sample, known.is_on()));
            let (column, took) = columns::measure(world, surveyed, sample, &mut known)?;
            seconds += took;
            measured.insert(division, column.map_err(|reason| reason.to_string()));
        }
        // Those that are given hold; those that were measured are kept with the segments, for a run that gives none.
        let measured_speeds = known.speeds(speeds::measured(epl, seconds)?);
        let speeds = given.or(measured_speeds);
        let alike = || ClusterDevices::alike(epl.cluster().world_size(), None);
        let devices = speeds.map_or_else(alike, |speeds| ClusterDevices::of_speeds(&speeds));
        // What is not sent takes no time that means anything.
        let calls = match links.is_some() || world.is_dry() {
            true => Vec::new(),
            false => known.calls(|| calibrate::calls(epl))?,
        };
        let own = rates::key(epl, optimizer).and_then(|key| Ok((key, optimizer.state()?)));
        let (key, state) = together(world, own, "measure an update, and says why")??;
        let rates = known.rates(world, key, || rates::rates(epl, optimizer))?;
        if links.is_none() {
            known.write(world)?;
        }
        let table = Self {
            cluster: epl.cluster().clone(),
            columns: measured,
            network: Network::measured(epl.cluster().hosts_of_ranks(), calls),
            devices,
            speeds: epl.config().auto.speeds.clone(),
            is_described: false,
            rates,
            away: rates::put_away_with(epl.config(), true),
            state,
            rows: sample.rows(),
            lanes: world.lanes(),
            is_bounded: epl.config().offload.device_bytes.is_some(),
            discovers: epl.config().auto.discover,
            whole_layers: epl.config().dist.whole_layers.clone(),
        };
        match links {
            Some(links) => table.over_links(links),
            None => Ok(table),
        }
    }

    /// The same, for each division also where layers are whole that take less so, as a search may choose. Collective.
    pub(super) fn with_whole_layers<M: Model, O: OptimizerConfig>(
        mut self,
        epl: &Epl,
        model: &mut dyn FnMut(&Place) -> M,
        optimizer: &O,
        sample: &mut Sample<'_, M::Batch>,
    ) -> Result<Self> {
        if !whole_layers::may_be_chosen(epl, &self.columns, &self.network) {
            return Ok(self);
        }
        let mut known = Calibration::read(epl)?;
        let measured = (&mut self.columns, &self.network);
        whole_layers::look(epl, measured, model, optimizer, (sample, &mut known))?;
        if !self.is_described {
            known.write(epl.world())?;
        }
        Ok(self)
    }

    /// The same, where collectives take what the links of a described cluster let them, in place of what was measured, and cost the
    /// rank that started them nothing; where its devices are not alike, what was measured is of the slowest.
    ///
    /// # Errors
    ///
    /// When the cluster has another number of devices.
    pub fn over_links(self, machine: &Machine) -> Result<Self> {
        let cluster = machine.cluster()?;
        let (described, ranks) = (cluster.world_size(), self.cluster.world_size());
        if described != ranks {
            return Err(Error::invalid(format!(
                "a cluster of {described} devices is described, and costs were measured for {ranks} ranks; describe as many"
            )));
        }
        let (network, devices) = (machine.network()?, machine.devices());
        let rates = Rates { lost: 0.0, spared: 0.0, ..self.rates };
        Ok(Self { network, devices, speeds: None, is_described: true, cluster, rates, ..self })
    }

    /// The layout that takes least, of those that what is given allows: see [`Epl::search`].
    ///
    /// # Errors
    ///
    /// When none is possible or fits; when `auto.measure` asks for runs, which a table does not make.
    pub fn search(&self, given: &Config) -> Result<Found> {
        match given.auto.measure {
            0 => self.found(given),
            runs => Err(Error::invalid(format!(
                "auto.measure = {runs} has layouts run, and a table of costs runs none; call `Epl::search`, or leave it out"
            ))),
        }
    }

    /// The same, whether layouts are run later or not.
    pub(super) fn found(&self, given: &Config) -> Result<Found> {
        search::check_search(given, self.rows)?;
        self.check_bound(given)?;
        self.check_discovers(given)?;
        check_same("dist.whole_layers", &given.dist.whole_layers, &self.whole_layers)?;
        if self.is_described {
            search::check_described(given)?;
        } else {
            check_same("auto.speeds", &given.auto.speeds, &self.speeds)?;
        }
        if given.offload.device_bytes.is_none() && search::is_fixed(given, "auto.margin") {
            return Err(Error::invalid(format!(
                "auto.margin = {} is of a device's memory, which is not bounded; give offload.device_bytes, or leave it out",
                given.auto.margin
            )));
        }
        let segments = self.columns.values().flatten().map(|column| column.segments.len()).next();
        search::search(&self.judge(given), given, segments.unwrap_or(1))
    }

    /// What the layout takes that a configuration says.
    ///
    /// # Errors
    ///
    /// When it cannot be, needs more than `offload.device_bytes`, or divides layers in a way that was not measured; when something of it
    /// is chosen later.
    pub fn explain(&self, config: &Config) -> Result<Choice> {
        self.check_bound(config)?;
        if config.dist.tensor_parallel_size > 1 {
            self.check_discovers(config)?;
        }
        // An engine adds no margin.
        search::explain(&Judge { margin: 0.0, ..self.judge(config) }, config)
    }

    fn check_bound(&self, config: &Config) -> Result<()> {
        match config.offload.device_bytes {
            Some(bytes) if !self.is_bounded => Err(Error::invalid(format!(
                "offload.device_bytes = {bytes} bounds activations, and these costs were measured without them; measure under a \
                 configuration that gives it"
            ))),
            _ => Ok(()),
        }
    }

    fn check_discovers(&self, config: &Config) -> Result<()> {
        match (config.auto.discover, self.discovers) {
            (asked, known) if asked == known => Ok(()),
            (asked, known) => Err(Error::invalid(format!(
                "auto.discover = {asked}, and these costs were measured with {known}; measure under a configuration that gives the same"
            ))),
        }
    }

    fn judge(&self, config: &Config) -> Judge<'_> {
        // What an update takes that brings parameters over, too, says nothing of one that brings gradients alone.
        let is_away = |tiers: Tiers| [tiers.parameters, tiers.gradients, tiers.state].map(|tier| tier != Tier::Device);
        let is_measured = rates::put_away_with(config, true).map(is_away) == self.away.map(is_away);
        let HostUpdates { of_state, of_more } = self.rates.host_updates;
        let host_updates = HostUpdates { of_state, of_more: of_more.filter(|_| is_measured) };
        Judge {
            columns: &self.columns,
            cluster: &self.cluster,
            network: &self.network,
            rates: Rates { host_updates, ..self.rates },
            state: self.state,
            batch: self.rows,
            devices: self.devices.clone().with_bytes(config.offload.device_bytes),
            budget_of: "offload.device_bytes",
            margin: config.auto.margin,
            lanes: self.lanes,
        }
    }
}

/// Refuses an option that was given otherwise when costs were measured.
fn check_same<T: Debug + PartialEq>(key: &str, asked: &Option<Vec<T>>, known: &Option<Vec<T>>) -> Result<()> {
    let told = |given: &Option<Vec<T>>| match given {
        Some(given) => format!("{key} = {given:?}"),
        None => format!("no {key}"),
    };
    match asked == known {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "there is {}, and costs were measured with {}; measure under a configuration that gives the same",
            told(asked),
            told(known)
        ))),
    }
}
