//! A number for each member of a group.

use core::fmt;
use core::ops::Index;

/// A number for each member of a group, or of no group at all. It takes no allocation where all are the same.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct PerMember {
    members: usize,
    numbers: Numbers,
}

/// What is the same is always held as [`Same`](Self::Same): so equal lists are equal values.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Numbers {
    Same(usize),
    Each(Box<[usize]>),
}

impl Default for Numbers {
    fn default() -> Self {
        Self::Same(0)
    }
}

impl PerMember {
    /// The same number for each of `members` members.
    pub fn same(number: usize, members: usize) -> Self {
        let number = if members == 0 { 0 } else { number };
        Self { members, numbers: Numbers::Same(number) }
    }

    /// How many members there are.
    pub fn len(&self) -> usize {
        self.members
    }

    /// Whether there is no member.
    pub fn is_empty(&self) -> bool {
        self.members == 0
    }

    /// Whether all members have the same number.
    pub fn is_even(&self) -> bool {
        matches!(self.numbers, Numbers::Same(_))
    }

    /// The numbers, in the order of the members.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = usize> {
        (0..self.members).map(|member| self[member])
    }

    /// The sum of all numbers.
    pub fn total(&self) -> usize {
        self.before(self.members)
    }

    /// The sum of the numbers of those who come before a member.
    pub fn before(&self, member: usize) -> usize {
        match &self.numbers {
            Numbers::Same(number) => number * member,
            Numbers::Each(numbers) => numbers[..member].iter().sum(),
        }
    }

    /// Every number, multiplied.
    pub(crate) fn times(&self, factor: usize) -> Self {
        match &self.numbers {
            Numbers::Same(number) => Self::same(number * factor, self.members),
            Numbers::Each(numbers) => numbers.iter().map(|number| number * factor).collect(),
        }
    }
}

impl Index<usize> for PerMember {
    type Output = usize;

    fn index(&self, member: usize) -> &usize {
        assert!(member < self.members, "member {member} of {}", self.members);
        match &self.numbers {
            Numbers::Same(number) => number,
            Numbers::Each(numbers) => &numbers[member],
        }
    }
}

impl From<&[usize]> for PerMember {
    fn from(numbers: &[usize]) -> Self {
        match numbers {
            [] => Self::default(),
            [first, others @ ..] if others.iter().all(|other| other == first) => Self::same(*first, numbers.len()),
            _ => Self { members: numbers.len(), numbers: Numbers::Each(numbers.into()) },
        }
    }
}

impl FromIterator<usize> for PerMember {
    fn from_iter<I: IntoIterator<Item = usize>>(numbers: I) -> Self {
        Self::from(&*numbers.into_iter().collect::<Vec<_>>())
    }
}

impl fmt::Debug for PerMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_list_it_was_made_of() {
        for list in [&[][..], &[3], &[3, 3, 3], &[0, 0], &[1, 0, 5]] {
            let numbers = PerMember::from(list);
            assert_eq!(numbers, list.iter().copied().collect());
            assert_eq!(numbers.iter().collect::<Vec<_>>(), list);
            assert_eq!((numbers.len(), numbers.is_empty()), (list.len(), list.is_empty()));
            assert_eq!(numbers.total(), list.iter().sum::<usize>());
            assert_eq!(format!("{numbers:?}"), format!("{list:?}"));
            let doubled: Vec<_> = list.iter().map(|number| number * 2).collect();
            assert_eq!(numbers.times(2), PerMember::from(&*doubled));
            for (member, number) in list.iter().enumerate() {
                assert_eq!((numbers[member], numbers.before(member)), (*number, list[..member].iter().sum()));
            }
        }
        assert_eq!(PerMember::from(&[1, 0, 5][..]).times(0), PerMember::same(0, 3));
        assert_eq!(
            (PerMember::same(7, 0), PerMember::from(&[2, 2][..])),
            (PerMember::default(), PerMember::same(2, 2))
        );
        assert!(PerMember::same(2, 2).is_even() && !PerMember::from(&[2, 1][..]).is_even());
    }
}
