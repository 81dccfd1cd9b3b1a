//! What may have made a loss NaN: what a layer does not look at, since a look would wait for the device.

use core::fmt;

use super::Context;

/// Says what is wrong, if something is.
type Look = Box<dyn FnOnce() -> Option<String> + Send>;

/// What the layers of one micro-batch would look at if its loss were NaN.
#[derive(Default)]
pub(crate) struct NanCauses(Vec<Look>);

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

impl Context {
    /// Says where to look if the loss of the current micro-batch is NaN, which the layer makes it where its input is
    /// wrong. The engine reads the loss once the micro-batch has gone backward, and looks then: what is found is the
    /// error of the step, or of the evaluation, before anything is updated and before mixed precision would skip the
    /// step. So a check of values on a device costs no wait for it, as long as nothing is wrong. Where the loss is nobody's
    /// but the caller's, as in a forward of one's own, nothing is kept.
    pub fn explain_nan(&self, look: impl FnOnce() -> Option<String> + Send + 'static) {
        let mut state = self.state();
        let replay = state.replay;
        if let Some(causes) = state.nan_causes.as_mut().filter(|_| !replay) {
            causes.0.push(Box::new(look));
        }
    }

    /// Begins to take what layers say of the current micro-batch, whose loss somebody reads.
    pub(crate) fn open_nan_causes(&self) {
        self.state().nan_causes = Some(NanCauses::default());
    }

    /// Takes what the layers of the current micro-batch said.
    pub(crate) fn take_nan_causes(&self) -> NanCauses {
        self.state().nan_causes.take().unwrap_or_default()
    }
}
