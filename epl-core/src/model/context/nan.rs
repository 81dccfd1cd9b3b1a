//! What may have made a loss NaN: what a layer does not look at, since a look would wait for the device.

use core::fmt;

/// Says what is wrong, if something is.
pub(super) type Look = Box<dyn FnOnce() -> Option<String> + Send>;

/// What the layers of one micro-batch would look at if its loss were NaN.
#[derive(Default)]
pub(crate) struct NanCauses(pub(super) Vec<Look>);

impl NanCauses {
    /// The first that is found.
    pub fn find(self) -> Option<String> {
        self.0.into_iter().find_map(|look| look())
    }
}

impl fmt::Debug for NanCauses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} looks", self.0.len())
    }
}
