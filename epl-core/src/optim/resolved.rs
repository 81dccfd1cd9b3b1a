//! Which variant of an optimizer updates each parameter, and how far.

use std::collections::{BTreeSet, HashMap};

use burn::tensor::DType;
use serde_json::{Value, json};

use super::group_settings::GroupSettings;
use super::optimizers::OptimizerConfig;
use super::per_parameter::{PerParameter, UpdateBy};
use super::variant::Variant;
use crate::config::{self, PathNumber};
use crate::error::{Error, Refusals, Result};
use crate::params::ParamRecord;
use crate::pattern::{self, Pattern};
use crate::plan::Plan;

/// An optimizer whose groups have found their parameters.
#[derive(Clone, Debug)]
pub(crate) struct ResolvedOptimizer {
    pub name: &'static str,
    element_wise: bool,
    /// The first one updates what no group names.
    pub variants: Vec<Variant>,
    /// By the numbers of the records.
    updates: Vec<UpdateBy>,
    /// What a checkpoint keeps.
    pub settings: Value,
}

impl ResolvedOptimizer {
    /// The optimizer of a model with these parameters.
    ///
    /// # Errors
    ///
    /// As [`ResolvedGroups::new`]; and when a group's settings are not those of the optimizer, clip each parameter by itself, or would
    /// keep other state than the rest.
    pub fn new<O: OptimizerConfig>(
        optimizer: &O,
        options: &config::OptimizerConfig,
        records: &[ParamRecord],
    ) -> Result<Self> {
        let groups = ResolvedGroups::new(optimizer, options, records)?;
        let mut variants = vec![optimizer.variant(None, None)?];
        let mut known: Vec<(Option<usize>, Option<f64>)> = vec![(None, None)];
        let mut updates = Vec::new();
        for record in records {
            let said = groups.of(record);
            let key = if said.frozen { (None, None) } else { (said.own, said.weight_decay) };
            let variant = match known.iter().position(|other| *other == key) {
                Some(variant) => variant,
                None => {
                    let variant = optimizer.variant(key.0, key.1).map_err(|error| Error::Parameter {
                        name: record.name.clone(),
                        reason: format!("its parameter group cannot be: {error}"),
                    })?;
                    known.push(key);
                    variants.push(variant);
                    check_state(&variants, record, O::NAME)?;
                    variants.len() - 1
                }
            };
            updates.push(UpdateBy { variant, rate_factor: said.rate_factor });
        }
        let settings = groups.settings(&variants[0]);
        Ok(Self { name: O::NAME, element_wise: O::ELEMENT_WISE, variants, updates, settings })
    }

    /// Refuses what would depend on the layout.
    ///
    /// # Errors
    ///
    /// When the optimizer looks at whole tensors, and this rank has a slice of one.
    pub fn check(&self, plan: &Plan) -> Result<()> {
        match plan.records().iter().find(|record| !record.cuts.is_empty()) {
            Some(record) if !self.element_wise => Err(Error::Parameter {
                name: record.name.clone(),
                reason: format!(
                    "{} looks at whole tensors, and this rank holds {:?} of {:?}; use an element-wise optimizer such as \
                     AdamW, or do not divide the parameter",
                    self.name,
                    record.shape(),
                    record.global_shape
                ),
            }),
            _ => Ok(()),
        }
    }

    /// What updates the parameter of this number.
    pub fn update(&self, number: usize) -> UpdateBy {
        self.updates.get(number).copied().unwrap_or(UpdateBy::ALIKE)
    }

    /// What updates these parameters one by one, and has updated none yet.
    pub fn per_parameter(&self, records: &[ParamRecord]) -> PerParameter {
        let updates = records.iter().enumerate().map(|(number, record)| (record.id, self.update(number)));
        let updates: HashMap<_, _> = updates.filter(|(_, update)| *update != UpdateBy::ALIKE).collect();
        PerParameter::new(&self.variants, updates)
    }
}

/// Refuses a last variant that keeps other state than the first: tried on a small parameter.
fn check_state(variants: &[Variant], record: &ParamRecord, name: &str) -> Result<()> {
    let kept = |variant: &Variant| -> BTreeSet<String> {
        let [_, later] = PerParameter::new(std::slice::from_ref(variant), HashMap::new()).names(&[2, 2], DType::F32);
        later
    };
    let (Some(first), Some(last)) = (variants.first(), variants.last()) else { return Ok(()) };
    let (expected, found) = (kept(first), kept(last));
    if found == expected {
        return Ok(());
    }
    Err(Error::Parameter {
        name: record.name.clone(),
        reason: format!(
            "the settings of its group keep {found:?} of a parameter, and {name}'s others {expected:?}; give all groups \
             settings that keep the same, such as a momentum of 0 in the place of none"
        ),
    })
}

/// The groups of a program and of the options, in their order.
#[derive(Clone, Debug)]
pub(crate) struct ResolvedGroups(Vec<(Vec<Pattern>, GroupSettings)>);

/// What the groups say of a parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Said {
    /// The number of the group whose own settings are the optimizer's.
    own: Option<usize>,
    weight_decay: Option<f64>,
    rate_factor: f64,
    frozen: bool,
}

impl ResolvedGroups {
    /// The groups of an optimizer, and behind them those of the options, for a model with these parameters.
    ///
    /// # Errors
    ///
    /// All patterns that cover no parameter, and all numbers that are negative.
    pub fn new<O: OptimizerConfig>(
        optimizer: &O,
        options: &config::OptimizerConfig,
        records: &[ParamRecord],
    ) -> Result<Self> {
        let mut refusals = Refusals::default();
        let paths: Vec<&str> = records.iter().map(|record| record.name.as_str()).collect();
        let mut all = Vec::new();
        let groups = optimizer.groups()?.into_iter().map(|group| (None, group));
        for (option, group) in groups.chain(of_options(options)) {
            let said = option.map_or("a parameter group".to_string(), |option| format!("optimizer.{option}"));
            for (what, number) in [("rate factor", group.rate_factor), ("weight decay", group.weight_decay)] {
                if let Some(number) = number.filter(|number| !(number.is_finite() && *number >= 0.0)) {
                    refusals
                        .add(Error::invalid(format!("{said} has the {what} {number}; give a number of at least 0")));
                }
            }
            if group.patterns.is_empty() {
                refusals.add(Error::invalid(format!("{said} has no pattern; name the paths of its parameters")));
            }
            let patterns: Vec<Pattern> = group.patterns.iter().map(|text| Pattern::new(text)).collect();
            for text in &group.patterns {
                refusals.of(pattern::covered(text, &paths, (&said, "parameter")));
            }
            all.push((patterns, group));
        }
        refusals.into_result()?;
        Ok(Self(all))
    }

    /// Which of these parameters are frozen by a group.
    pub fn frozen(&self, records: &[ParamRecord]) -> Vec<bool> {
        records.iter().map(|record| self.of(record).frozen).collect()
    }

    /// What the last group that says a setting says, of each setting.
    fn of(&self, record: &ParamRecord) -> Said {
        let mut said = Said { own: None, weight_decay: None, rate_factor: 1.0, frozen: false };
        let covers = |patterns: &[Pattern]| patterns.iter().any(|pattern| pattern.covers(&record.name));
        for (number, (_, group)) in self.0.iter().enumerate().filter(|(_, (patterns, _))| covers(patterns)) {
            if group.optimizer.is_some() {
                // A weight decay is one of them.
                (said.own, said.weight_decay) = (Some(number), None);
            }
            said.weight_decay = group.weight_decay.or(said.weight_decay);
            said.rate_factor = group.rate_factor.unwrap_or(said.rate_factor);
            said.frozen = group.frozen.unwrap_or(said.frozen);
        }
        said
    }

    /// What a checkpoint keeps: the optimizer's settings alone where there are no groups.
    fn settings(&self, rest: &Variant) -> Value {
        if self.0.is_empty() {
            return rest.settings.clone();
        }
        let groups: Vec<&GroupSettings> = self.0.iter().map(|(_, group)| group).collect();
        json!({ "optimizer": rest.settings, "groups": groups })
    }
}

/// The groups of the options, each with its option's name.
fn of_options(options: &config::OptimizerConfig) -> Vec<(Option<&'static str>, GroupSettings)> {
    let numbers = |name: &'static str, said: &[PathNumber], put: fn(&mut GroupSettings, f64)| {
        let group = |PathNumber { path, number }: &PathNumber| {
            let mut group = GroupSettings::of(vec![path.clone()]);
            put(&mut group, *number);
            (Some(name), group)
        };
        said.iter().map(group).collect::<Vec<_>>()
    };
    let mut groups = numbers("rate_factor", &options.rate_factor, |group, number| group.rate_factor = Some(number));
    groups.extend(numbers("weight_decay", &options.weight_decay, |group, number| group.weight_decay = Some(number)));
    if !options.frozen.is_empty() {
        groups
            .push((Some("frozen"), GroupSettings { frozen: Some(true), ..GroupSettings::of(options.frozen.clone()) }));
    }
    groups
}
