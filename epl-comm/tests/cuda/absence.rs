//! Without a driver or a device, every way in is an error.

use std::sync::Arc;

use epl_comm::nccl::{self, CudaMemory, Launcher, Worker};
use epl_comm::{Error, MemoryStore};

#[test]
fn too_few_devices_are_an_error_with_the_remedy() {
    let devices = nccl::devices();
    if let Err(error) = &devices {
        assert!(matches!(error, Error::Engine { message } if message.contains("driver")), "{error}");
    }
    let count = devices.unwrap_or(0);
    let error = CudaMemory::new(count).map(drop).unwrap_err();
    assert!(matches!(error, Error::Engine { .. }), "{error}");
    let (_, error) = nccl::run(count + 1, |_| Ok::<_, Error>(())).unwrap_err();
    assert!(matches!(error, Error::Engine { .. }), "{error}");
    let (_, error) = Launcher::new(2).devices(&[0]).run(|_| Ok::<_, Error>(())).unwrap_err();
    assert!(matches!(error, Error::Engine { .. } | Error::Invalid { .. }), "{error}");
    let worker = Worker::new(Arc::new(MemoryStore::new()), 0..1, 1).devices(&[count]);
    assert!(matches!(worker.run(|_| Ok::<_, Error>(())), Err((_, Error::Engine { .. }))));
}
