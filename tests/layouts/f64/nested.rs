//! Scopes never change the mathematics: in f64, all errors are at most 1e-10.

#[test]
fn a_model_in_scopes_equals_the_plain_one() {
    epl_testing::in_f64(|| {
        crate::scopes::all(1e-10);
    });
}
