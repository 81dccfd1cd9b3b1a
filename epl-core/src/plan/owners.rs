//! To whom a segment belongs, by the parameters that it alone uses.

use crate::params::ParamRecord;

/// An owner, and one of the parameters that it owns.
pub(super) type Owned<'a, O> = (O, &'a str);

/// Who owns the parameters that only this segment uses, and who else, if not one owner has them all. A tied weight, which
/// several segments use, is made in one place and says nothing.
pub(super) fn owners<'a, O: PartialEq>(
    records: &'a [ParamRecord],
    segment: usize,
    owner: impl Fn(&ParamRecord) -> Option<O>,
) -> (Option<Owned<'a, O>>, Option<Owned<'a, O>>) {
    let own = records.iter().filter(|record| record.segments == [segment]);
    let mut owned = own.filter_map(|record| Some((owner(record)?, &*record.name)));
    let first = owned.next();
    let other = first.as_ref().and_then(|(first, _)| owned.find(|(other, _)| other != first));
    (first, other)
}
