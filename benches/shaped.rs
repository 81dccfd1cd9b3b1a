//! A transport as slow as links that are described, around one that is there.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use epl::comm::{Buffer, Call, Error, Operation, Rank, Result, Staged, Transport};
use epl::cost::Network;

/// Goes on with a call once as much time has passed behind the last member's coming as the call takes over these links. What is sent
/// goes on its way when the send is started, behind what was sent before it, and is received when it has come. Cards that several groups
/// share are shared as [`Network`] says.
#[derive(Debug)]
pub struct Shaped {
    inner: Arc<dyn Transport>,
    links: Arc<ShapedLinks>,
}

/// The links of all ranks of a process.
#[derive(Debug)]
pub struct ShapedLinks {
    network: Network,
    /// When what was sent last over a link comes, and what was not received yet, by its number.
    sent: Mutex<HashMap<Vec<Rank>, OnWay>>,
}

#[derive(Debug, Default)]
struct OnWay {
    last: Option<Instant>,
    coming: HashMap<u64, Instant>,
}

impl ShapedLinks {
    /// Links on which calls take so long.
    pub fn new(network: Network) -> Arc<Self> {
        Arc::new(Self { network, sent: Mutex::default() })
    }
}

impl Shaped {
    /// Around a transport of ranks that are numbered as the network's are.
    pub fn around(inner: Arc<dyn Transport>, links: Arc<ShapedLinks>) -> Arc<dyn Transport> {
        Arc::new(Self { inner, links })
    }

    fn same(&self, inner: Arc<dyn Transport>) -> Arc<dyn Transport> {
        Self::around(inner, self.links.clone())
    }

    /// Puts what is sent on its way, unless it is.
    fn send(&self, call: &Call) {
        let (takes, mut sent) = (self.takes(call), self.links.sent.lock().unwrap_or_else(PoisonError::into_inner));
        let link = sent.entry(self.members().to_vec()).or_default();
        if !link.coming.contains_key(&call.sequence) {
            let now = Instant::now();
            let comes = link.last.map_or(now, |last| last.max(now)) + takes;
            link.last = Some(comes);
            link.coming.insert(call.sequence, comes);
        }
    }

    /// When what a receive has got came.
    fn comes(&self, call: &Call) -> Option<Instant> {
        let mut sent = self.links.sent.lock().unwrap_or_else(PoisonError::into_inner);
        sent.get_mut(self.members())?.coming.remove(&call.sequence)
    }

    fn takes(&self, call: &Call) -> Duration {
        let ranks: Vec<usize> = self.members().iter().map(|rank| rank.0).collect();
        let bytes = (call.shape.num_elements() * call.dtype.size()) as u64;
        Duration::from_secs_f64(self.links.network.seconds(call.operation, bytes, &ranks))
    }
}

impl Transport for Shaped {
    fn run(&self, call: Box<Call>, buffer: Buffer) -> Result<Buffer> {
        match call.operation {
            Operation::Send => {
                self.send(&call);
                self.inner.run(call, buffer)
            }
            Operation::Receive => {
                let number = call.clone();
                let result = self.inner.run(call, buffer);
                if let Some(comes) = self.comes(&number) {
                    sleep(comes.saturating_duration_since(Instant::now()));
                }
                result
            }
            _ => {
                let takes = self.takes(&call);
                let result = self.inner.run(call, buffer);
                sleep(takes);
                result
            }
        }
    }

    fn stage(self: Arc<Self>, call: Box<Call>, buffer: Buffer) -> Result<Staged> {
        if call.operation == Operation::Send {
            self.send(&call);
        }
        match self.inner.clone().stage(call, buffer)? {
            // Comes to `run`.
            Staged::Whole(call, buffer) => Ok(Staged::Whole(call, buffer)),
            Staged::Launch(_) => Err(Error::invalid(
                "what a device goes on with by itself cannot be delayed; shape a transport of the host",
            )),
        }
    }

    fn split(&self, sequence: u64, name: &str, color: usize, key: usize) -> Result<Arc<dyn Transport>> {
        Ok(self.same(self.inner.split(sequence, name, color, key)?))
    }

    fn split_by(&self, sequence: u64, name: &str, wishes: &[(usize, usize)]) -> Result<Arc<dyn Transport>> {
        Ok(self.same(self.inner.split_by(sequence, name, wishes)?))
    }

    fn link(&self, from: usize, to: usize) -> Result<Arc<dyn Transport>> {
        Ok(self.same(self.inner.link(from, to)?))
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn member(&self) -> usize {
        self.inner.member()
    }

    fn members(&self) -> &[Rank] {
        self.inner.members()
    }

    fn reserve(&self, operation: Operation) -> u64 {
        self.inner.reserve(operation)
    }

    fn reserve_stage(&self, whole: Operation, stage: Operation) -> u64 {
        self.inner.reserve_stage(whole, stage)
    }

    fn moves_rows(&self) -> bool {
        self.inner.moves_rows()
    }

    fn lanes(&self) -> usize {
        self.inner.lanes()
    }

    fn trim(&self) {
        self.inner.trim();
    }

    fn warmed_up(&self) {
        self.inner.warmed_up();
    }

    fn sleep(&self, operation: Operation, sequence: u64, sleep: &mut dyn FnMut()) {
        self.inner.sleep(operation, sequence, sleep);
    }

    fn abort(&self, cause: &Error) {
        self.inner.abort(cause);
    }
}
