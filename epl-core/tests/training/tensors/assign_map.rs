//! Which stored tensor goes where, on one rank and on ranks that hold slices.

use core::ops::Range;
use std::sync::Mutex;

use burn::tensor::TensorData;
use epl_core::Result;
use epl_core::tensors::{AssignMap, Assignment, TensorInfo, WholeTensors};
use epl_core::testing::run;

use super::{LAYERS, Net, Tensors, counting, stored, whole};

/// The whole parameters before and after an assignment, which one rank and two slices agree on.
fn assigned(stored: &Tensors, map: &AssignMap) -> (Tensors, Tensors) {
    let on = |mesh| run(mesh, |epl| Ok((whole(Net::build(&epl)?)?, whole(Net::build(&epl)?.assign(stored, map)?)?)));
    let one = on((1, 1, 1)).remove(0);
    on((1, 2, 1)).into_iter().chain(on((2, 1, 1))).for_each(|rank| assert_eq!(rank, one));
    one
}

fn refused(stored: &Tensors, map: &AssignMap) -> String {
    let mut errors = run((1, 1, 1), |epl| Ok(Net::build(&epl)?.assign(stored, map).map(drop).unwrap_err().to_string()));
    errors.remove(0)
}

#[test]
fn names_that_are_the_same() {
    let (before, after) = assigned(&stored(), &AssignMap::identity());
    assert_ne!(before, after);
    assert_eq!(after, stored());
}

#[test]
fn one_stored_layer_into_many() {
    let map = AssignMap::identity().with("layers.1", "layers.*").allow_unused("layers");
    let (_, after) = assigned(&stored(), &map);
    for layer in 0..LAYERS {
        assert_eq!(after[&format!("layers.{layer}.weight")], stored()["layers.1.weight"]);
        assert_eq!(after[&format!("layers.{layer}.bias")], stored()["layers.1.bias"]);
    }
    assert_eq!(after["embedding.weight"], stored()["embedding.weight"]);
}

#[test]
fn other_prefixes_and_numbers() {
    let renamed = stored().into_iter().map(|(name, data)| (format!("old.{}", name.replace("layers.", "h.")), data));
    let renamed: Tensors = renamed.collect();
    let map = AssignMap::new()
        .with("old", "")
        .with("old.h.*.weight", "layers.*.weight")
        .with("old.h.*.bias", "layers.*.bias");
    assert_eq!(assigned(&renamed, &map).1, stored());
    let last = map.with("old.h.0", "layers.2").allow_unused("old.h.2");
    let (_, after) = assigned(&renamed, &last);
    assert_eq!(after["layers.2.weight"], stored()["layers.0.weight"], "the last one that fits counts");
}

#[test]
fn a_dense_network_into_each_expert() {
    let mut stored = stored();
    stored.insert("experts".into(), counting(7, &[4, 2]));
    let map = AssignMap::identity().with_assignment(Assignment::new("experts", "experts").repeated());
    let (_, after) = assigned(&stored, &map);
    let one: Vec<f32> = stored["experts"].iter().collect();
    assert_eq!(after["experts"], TensorData::new(one.repeat(3), [3, 4, 2]));
}

#[test]
fn rows_of_a_larger_vocabulary_and_of_a_smaller_one() {
    let taking = Assignment::new("embedding.weight", "embedding.weight").taking(0, 2..7);
    let mut larger = stored();
    larger.insert("embedding.weight".into(), counting(0, &[9, 4]));
    let (_, after) = assigned(&larger, &AssignMap::identity().with_assignment(taking));
    assert_eq!(after["embedding.weight"], counting(8, &[5, 4]));

    let putting = Assignment::new("embedding.weight", "embedding.weight").putting(0, 1..4);
    let mut smaller = stored();
    smaller.insert("embedding.weight".into(), counting(0, &[3, 4]));
    let map = AssignMap::new().with("layers", "layers").with("experts", "experts").with_assignment(putting);
    let (before, after) = assigned(&smaller, &map);
    let rows = |data: &TensorData, rows: Range<usize>| {
        data.iter::<f32>().collect::<Vec<_>>()[rows.start * 4..rows.end * 4].to_vec()
    };
    let (before, after) = (&before["embedding.weight"], &after["embedding.weight"]);
    assert_eq!(rows(after, 1..4), rows(&counting(0, &[3, 4]), 0..3));
    assert_eq!((rows(after, 0..1), rows(after, 4..5)), (rows(before, 0..1), rows(before, 4..5)), "the rest stays");
}

#[test]
fn a_part_is_laid_over_the_whole_and_over_slices() {
    let mut stored = stored();
    stored.insert("other".into(), counting(900, &[2, 4, 1]));
    let part = Assignment::new("other", "experts").putting(0, 1..3).putting(2, 1..2);
    let (_, after) = assigned(&stored, &AssignMap::identity().with_assignment(part));
    let mut expected: Vec<f32> = stored["experts"].iter().collect();
    for (index, value) in stored["other"].iter::<f32>().enumerate() {
        expected[8 + 2 * index + 1] = value;
    }
    assert_eq!(after["experts"], TensorData::new(expected, [3, 4, 2]));
}

#[test]
fn what_may_be_missing_keeps_its_values() {
    let mut less = stored();
    less.retain(|name, _| !name.starts_with("layers.2"));
    less.insert("pooler.weight".into(), counting(0, &[1]));
    let map = AssignMap::identity().allow_missing("layers.2").allow_unused("pooler");
    let (before, after) = assigned(&less, &map);
    assert_eq!(after["layers.2.weight"], before["layers.2.weight"]);
    assert_eq!(after["layers.1.weight"], less["layers.1.weight"]);
}

#[test]
fn all_that_does_not_fit_is_listed() {
    let mut other = stored();
    other.remove("layers.0.bias");
    other.insert("spare".into(), counting(0, &[1]));
    other.insert("layers.1.weight".into(), counting(0, &[4, 5]));
    let map = AssignMap::identity().with("a.*", "layers.*.*").with("b", "decoder");
    let error = refused(&other, &map);
    for part in ["2 wrong in the map: `a.*` has 1 stars and `layers.*.*` 2", "the model has no parameter at `decoder`"]
    {
        assert!(error.contains(part), "{error}");
    }
    let error = refused(&other, &AssignMap::identity());
    for part in [
        "1 of the model not stored (see `allow_missing`): layers.0.bias (from `layers.0.bias`)",
        "1 stored and not used (see `allow_unused`): spare",
        "1 of another shape: `layers.1.weight` gives [4, 5] where `layers.1.weight` has [4, 4]",
    ] {
        assert!(error.contains(part), "{error}");
    }
    let nothing = refused(&stored(), &AssignMap::new());
    assert!(nothing.contains("8 of the model not stored") && nothing.contains("8 stored and not used"), "{nothing}");
}

#[test]
fn slices_that_cannot_be_are_refused_with_both_numbers() {
    let embedding = || Assignment::new("embedding.weight", "embedding.weight");
    for (assignment, part) in [
        (
            embedding().taking(0, 3..9),
            "stored `embedding.weight` has the shape [5, 4], and 3..9 of dim 0 was asked for",
        ),
        (embedding().taking(2, 0..1), "0..1 of dim 2 was asked for"),
        (embedding().putting(1, 4..4), "`embedding.weight` has the shape [5, 4], and 4..4 of dim 1 was asked for"),
        (embedding().putting(0, 0..2), "`embedding.weight` gives [5, 4] where `embedding.weight` has [2, 4]"),
        (embedding().repeated(), "gives [5, 4] where `embedding.weight` has [5, 4], for each entry of its first dim"),
    ] {
        let error = refused(&stored(), &AssignMap::identity().with_assignment(assignment));
        assert!(error.contains(part), "{error}");
    }
}

/// Remembers what is read.
struct Watched(Tensors, Mutex<Vec<(String, Vec<Range<usize>>)>>);

impl WholeTensors for Watched {
    fn names(&self) -> Vec<String> {
        self.0.names()
    }

    fn info(&self, name: &str) -> Option<TensorInfo> {
        self.0.info(name)
    }

    fn read(&self, name: &str, ranges: &[Range<usize>]) -> Result<TensorData> {
        self.1.lock().unwrap().push((name.into(), ranges.to_vec()));
        self.0.read(name, ranges)
    }
}

#[test]
fn a_rank_reads_only_its_slice_and_nothing_when_something_does_not_fit() {
    let read = run((1, 2, 1), |epl| {
        let watched = Watched(stored(), Mutex::default());
        Net::build(&epl)?.assign(&watched, &AssignMap::identity())?;
        let read = watched.1.into_inner().unwrap();
        Ok(read.into_iter().filter(|(name, _)| name == "experts").collect::<Vec<_>>())
    });
    let of = |range| vec![("experts".to_string(), vec![range, 0..4, 0..2])];
    assert_eq!(read, [of(0..2), of(2..3)]);
    let read = run((1, 1, 1), |epl| {
        let watched = Watched(stored(), Mutex::default());
        let refused = Net::build(&epl)?.assign(&watched, &AssignMap::identity().with("embedding", "layers.1"));
        assert!(refused.is_err());
        Ok(watched.1.into_inner().unwrap().len())
    });
    assert_eq!(read, [0]);
}
