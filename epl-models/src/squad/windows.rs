//! Long contexts in overlapping windows, as BERT's `run_squad` cuts them.
//!
//! ```text
//! pieces      0 1 2 3 4 5 6 7 8 9         room 5, stride 3
//! window 0    0 1 2 3 4
//! window 1          3 4 5 6 7
//! window 2                6 7 8 9         the first window that reaches the end is the last
//! best        0 0 0 0 1 1 1 2 2 2
//! ```
//!
//! Every piece is in one window at least. Where it is in several, an answer may start at it only in the one in which
//! it has most context on its narrower side, so that one and the same answer is not ranked several times.

use std::ops::Range;

/// The windows of a context: at most `room` pieces each, `stride` pieces after one another (less if the room is less).
///
/// # Panics
/// If room or stride is zero, which the settings of [`FeaturesConfig`](super::FeaturesConfig) exclude.
pub fn windows(pieces: usize, room: usize, stride: usize) -> Vec<Range<usize>> {
    assert!(room > 0 && stride > 0, "windows of {room} pieces, {stride} apart, never reach the end");
    let step = stride.min(room);
    let mut windows = Vec::new();
    let mut start = 0;
    while start < pieces {
        let end = pieces.min(start + room);
        windows.push(start..end);
        if end == pieces {
            break;
        }
        start += step;
    }
    windows
}

/// The window in which a piece has most context; none if it is in no window.
///
/// `run_squad` compares `min(left, right) + length / 100`; among equals the first window wins.
pub(super) fn most_context(windows: &[Range<usize>], piece: usize) -> Option<usize> {
    let context = |window: &Range<usize>| {
        let narrower = (piece - window.start).min(window.end - 1 - piece);
        // In hundredths, so that equal is equal.
        100 * narrower + window.len()
    };
    let holding = windows.iter().enumerate().filter(|(_, window)| window.contains(&piece));
    let best = holding.map(|(index, window)| (index, context(window))).reduce(|a, b| if b.1 > a.1 { b } else { a });
    best.map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn windows_overlap_and_stop_at_the_end() {
        assert_eq!(windows(10, 5, 3), [0..5, 3..8, 6..10]);
        assert_eq!(windows(5, 5, 3), [0..5]);
        assert_eq!(windows(6, 5, 3), [0..5, 3..6]);
        // A stride beyond the room would leave pieces out.
        assert_eq!(windows(7, 3, 100), [0..3, 3..6, 6..7]);
        assert!(windows(0, 5, 3).is_empty());
    }

    #[test]
    fn the_best_window_is_that_with_most_context() {
        let windows = windows(10, 5, 3);
        let best: Vec<usize> = (0..10).map(|piece| most_context(&windows, piece).unwrap()).collect();
        // Piece 3: one to its right in window 0, none to its left in window 1. Piece 7 ends window 1, begins nothing.
        assert_eq!(best, [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]);
        assert_eq!(most_context(&windows, 10), None);
        // On a tie of the narrower side, the longer window wins; if those are equal, too, the first.
        assert_eq!(most_context(&[0..4, 2..7], 3), Some(1));
        assert_eq!(most_context(&[0..4, 3..7], 3), Some(0));
        // Two hundred more pieces of length outweigh one of context.
        assert_eq!(most_context(&[0..201, 199..202], 200), Some(0));
    }

    proptest! {
        #[test]
        fn every_piece_is_in_a_window(pieces in 0usize..400, room in 1usize..60, stride in 1usize..80) {
            let windows = windows(pieces, room, stride);
            for piece in 0..pieces {
                let best = most_context(&windows, piece);
                prop_assert!(best.is_some_and(|best| windows[best].contains(&piece)));
            }
            prop_assert!(windows.iter().all(|window| !window.is_empty() && window.len() <= room && window.end <= pieces));
            prop_assert!(windows.windows(2).all(|two| two[1].start == two[0].start + stride.min(room)));
        }
    }
}
