//! Which points belong to a shape.

/// A shape of radius one around the origin; the second coordinate grows downwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Disc,
    Square,
    Triangle,
    Cross,
    Ring,
}

impl Form {
    pub(super) const ALL: [Form; 5] = [Form::Disc, Form::Square, Form::Triangle, Form::Cross, Form::Ring];

    pub(super) fn name(self) -> &'static str {
        match self {
            Form::Disc => "disc",
            Form::Square => "square",
            Form::Triangle => "triangle",
            Form::Cross => "cross",
            Form::Ring => "ring",
        }
    }

    /// Whether a point lies in the shape.
    pub(super) fn contains(self, x: f64, y: f64) -> bool {
        let (wide, narrow) = (x.abs().max(y.abs()), x.abs().min(y.abs()));
        let radius = x.hypot(y);
        match self {
            Form::Disc => radius <= 1.0,
            Form::Square => wide <= 0.8,
            // Equilateral, its tip at the top.
            Form::Triangle => y <= 0.5 && x.abs() * 3f64.sqrt() <= y + 1.0,
            Form::Cross => wide <= 0.95 && narrow <= 0.3,
            Form::Ring => (0.55..=1.0).contains(&radius),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_differ_where_they_should() {
        let inside = |x, y| Form::ALL.map(|form| form.contains(x, y));
        // Disc, square, triangle, cross, ring.
        assert_eq!(inside(0.0, 0.0), [true, true, true, true, false]);
        assert_eq!(inside(0.75, 0.75), [false, true, false, false, false]);
        assert_eq!(inside(0.0, -0.9), [true, false, true, true, true]);
        assert_eq!(inside(0.0, 0.9), [true, false, false, true, true]);
        assert_eq!(inside(0.5, 0.5), [true, true, true, false, true]);
        assert!(Form::ALL.iter().all(|form| !form.contains(1.01, 0.0) && !form.contains(0.0, -1.01)));
    }
}
