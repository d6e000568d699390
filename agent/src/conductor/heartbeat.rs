//! The heartbeat: when it is sent, and the task that sends it (protocol section 9).
//!
//! The first beat is sent at once. After an accepted one the next follows within 0.3 to 0.6 of the conductor's timeout,
//! after a failed one within 5 to 10 seconds. A forced beat (an asynchronous command has ended) is sent at once, but not
//! closer than 5 seconds to the one before. Requests are counted: one that arrives while a beat is in flight is not lost
//! when that beat succeeds.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use ferric_types::error::chain;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::error::ConductorError;
use super::{Announcement, Conductor, backoff};

/// Shortest time between two beats when the later one is forced.
const MIN_GAP: Duration = Duration::from_secs(5);

/// Shortest interval that is kept, whatever timeout the conductor names.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// Asks for a heartbeat soon; clones ask the same heartbeater.
#[derive(Debug, Clone)]
pub struct Force(Arc<watch::Sender<u64>>);

impl Default for Force {
    fn default() -> Self {
        Self::new()
    }
}

impl Force {
    /// A request counter for [`Heartbeater::spawn`].
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::new(0)))
    }

    /// Asks for a beat; it is sent once for all requests made before it begins.
    pub fn force(&self) {
        self.0.send_modify(|count| *count += 1);
    }
}

/// How the heartbeats fare.
#[derive(Debug, Clone, Default)]
pub struct BeatStatus {
    /// Beats the conductor accepted.
    pub accepted: u64,
    /// Failures since the last accepted one.
    pub failures_in_row: u32,
    /// When the last beat was accepted.
    pub last_accepted: Option<Instant>,
    /// Why the last beat failed, none when it was accepted.
    pub last_error: Option<String>,
}

/// The task that sends heartbeats; dropping it ends them.
#[derive(Debug)]
pub struct Heartbeater {
    force: Force,
    status: watch::Receiver<BeatStatus>,
    stop: watch::Sender<bool>,
    task: Option<JoinHandle<()>>,
}

impl Heartbeater {
    /// Starts sending. `timeout` is the conductor's, from the lookup.
    pub fn spawn(conductor: Arc<Conductor>, announcement: Announcement, timeout: Duration, force: &Force) -> Self {
        let (status_sender, status) = watch::channel(BeatStatus::default());
        let (stop, stopped) = watch::channel(false);
        let requests = force.0.subscribe();
        let announcement = Arc::new(announcement);
        let beat = move || {
            let (conductor, announcement) = (Arc::clone(&conductor), Arc::clone(&announcement));
            async move { conductor.heartbeat(&announcement).await }
        };
        let task = tokio::spawn(run(timeout, requests, stopped, status_sender, Rng::new(), beat));
        Self { force: force.clone(), status, stop, task: Some(task) }
    }

    /// Asks for a beat soon.
    pub fn force(&self) {
        self.force.force();
    }

    /// How the beats fare; the receiver can wait for changes.
    pub fn status(&self) -> watch::Receiver<BeatStatus> {
        self.status.clone()
    }

    /// Ends the beats; when this returns none is in flight.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        if let Some(task) = self.task.take()
            && let Err(error) = task.await
        {
            tracing::error!("the heartbeat task ended badly: {error}");
        }
    }
}

impl Drop for Heartbeater {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

/// When the next beat is due.
#[derive(Debug)]
struct Schedule {
    timeout: Duration,
    /// End of the last beat and the time from there to the next; none before the first beat.
    last: Option<(Instant, Duration)>,
    failed: bool,
    /// Requests that an accepted beat has answered.
    answered: u64,
}

impl Schedule {
    fn new(timeout: Duration) -> Self {
        Self { timeout, last: None, failed: false, answered: 0 }
    }

    /// The moment of the next beat, none for at once. After a failure requests wait for the spread retry as well:
    /// many agents may have met the same outage.
    fn due(&self, requests: u64) -> Option<Instant> {
        let (ended, interval) = self.last?;
        let forced = requests > self.answered && !self.failed;
        Some(ended + if forced { interval.min(MIN_GAP) } else { interval })
    }

    /// A beat that began when `requests` had been made has ended.
    fn ended(&mut self, now: Instant, accepted: bool, requests: u64, rng: &mut Rng) {
        self.failed = !accepted;
        let interval = if accepted {
            self.answered = requests;
            backoff::heartbeat_interval(rng, self.timeout).max(MIN_INTERVAL)
        } else {
            backoff::heartbeat_retry(rng)
        };
        self.last = Some((now, interval));
    }
}

async fn run<F>(
    timeout: Duration,
    mut requests: watch::Receiver<u64>,
    mut stopped: watch::Receiver<bool>,
    status: watch::Sender<BeatStatus>,
    mut rng: Rng,
    mut beat: impl FnMut() -> F,
) where
    F: Future<Output = Result<(), ConductorError>>,
{
    let mut schedule = Schedule::new(timeout);
    loop {
        let made = *requests.borrow_and_update();
        if let Some(due) = schedule.due(made) {
            tokio::select! {
                biased;
                _ = stopped.wait_for(|stop| *stop) => return,
                () = tokio::time::sleep_until(due) => {}
                Ok(()) = requests.changed() => continue,
            }
        }
        let made = *requests.borrow_and_update();
        let result = tokio::select! {
            biased;
            _ = stopped.wait_for(|stop| *stop) => return,
            result = beat() => result,
        };
        schedule.ended(Instant::now(), result.is_ok(), made, &mut rng);
        report(&result, &schedule, &status);
    }
}

fn report(result: &Result<(), ConductorError>, schedule: &Schedule, status: &watch::Sender<BeatStatus>) {
    let next = schedule.last.map_or(0.0, |(_, interval)| interval.as_secs_f64());
    let before = status.borrow().clone();
    match result {
        Ok(()) if before.accepted == 0 => tracing::info!("the conductor accepted the first heartbeat"),
        Ok(()) if before.failures_in_row > 0 => tracing::info!("the conductor accepts heartbeats again"),
        Ok(()) => tracing::debug!("heartbeat accepted; next in {next:.0} s"),
        Err(error) => {
            let count = before.failures_in_row + 1;
            tracing::warn!("{}; failure {count} in a row, next try in {next:.0} s", error.explain());
        }
    }
    status.send_modify(|status| match result {
        Ok(()) => {
            *status = BeatStatus {
                accepted: status.accepted + 1,
                failures_in_row: 0,
                last_accepted: Some(Instant::now()),
                last_error: None,
            };
        }
        Err(error) => {
            status.failures_in_row += 1;
            status.last_error = Some(chain(error));
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::StatusCode;
    use std::sync::Mutex;

    fn refused(status: u16) -> ConductorError {
        ConductorError::Refused {
            what: "heartbeat",
            url: "http://192.0.2.1:6385".parse().unwrap(),
            status: StatusCode::from_u16(status).unwrap(),
            text: "x".into(),
        }
    }

    /// A heartbeater against a scripted conductor: the time of each beat, and the script of the answers.
    struct Bench {
        begun: Instant,
        beats: Arc<Mutex<Vec<f64>>>,
        force: Force,
        stop: watch::Sender<bool>,
        status: watch::Receiver<BeatStatus>,
        task: JoinHandle<()>,
    }

    impl Bench {
        /// `answer` gets the number of the beat, from 1, and says whether it is accepted; each beat takes `takes`.
        fn start(timeout: u64, takes: Duration, answer: impl Fn(usize) -> bool + Send + 'static) -> Self {
            let begun = Instant::now();
            let beats = Arc::new(Mutex::new(Vec::new()));
            let force = Force::new();
            let (stop, stopped) = watch::channel(false);
            let (status_sender, status) = watch::channel(BeatStatus::default());
            let (record, requests) = (Arc::clone(&beats), force.0.subscribe());
            let beat = move || {
                let mut beats = record.lock().unwrap();
                beats.push(begun.elapsed().as_secs_f64());
                let accepted = answer(beats.len());
                async move {
                    tokio::time::sleep(takes).await;
                    if accepted { Ok(()) } else { Err(refused(409)) }
                }
            };
            let timeout = Duration::from_secs(timeout);
            let task = tokio::spawn(run(timeout, requests, stopped, status_sender, Rng::with_seed(5), beat));
            Self { begun, beats, force, stop, status, task }
        }

        async fn at(&self, seconds: f64) {
            tokio::time::sleep_until(self.begun + Duration::from_secs_f64(seconds)).await;
        }

        fn beats(&self) -> Vec<f64> {
            self.beats.lock().unwrap().clone()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_beat_is_sent_at_once_and_the_others_within_the_timeout() {
        let bench = Bench::start(300, Duration::ZERO, |_| true);
        bench.at(3000.0).await;
        let beats = bench.beats();
        assert!(beats[0] < 0.1, "{beats:?}");
        assert!(beats.windows(2).all(|pair| (90.0..=180.01).contains(&(pair[1] - pair[0]))), "{beats:?}");
        assert!(beats.len() > 15, "{beats:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_forced_beat_keeps_five_seconds_from_the_last_one() {
        let bench = Bench::start(300, Duration::ZERO, |_| true);
        bench.at(1.0).await;
        bench.force.force();
        bench.force.force();
        bench.at(30.0).await;
        bench.force.force();
        bench.at(31.0).await;
        let beats = bench.beats();
        assert_eq!(beats.len(), 3, "{beats:?}");
        assert!((beats[1] - 5.0).abs() < 0.1 && (beats[2] - 30.0).abs() < 0.1, "{beats:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_during_a_beat_gets_a_beat_of_its_own() {
        let bench = Bench::start(300, Duration::from_secs(3), |_| true);
        bench.at(1.0).await;
        bench.force.force();
        bench.at(20.0).await;
        let beats = bench.beats();
        assert_eq!(beats.len(), 2, "{beats:?}");
        assert!((beats[1] - 8.0).abs() < 0.1, "{beats:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn failures_are_retried_with_spread_and_a_request_is_kept_until_it_is_answered() {
        let bench = Bench::start(300, Duration::ZERO, |beat| !(2..=4).contains(&beat));
        bench.at(20.0).await;
        bench.force.force();
        bench.at(60.0).await;
        let beats = bench.beats();
        assert_eq!(beats.len(), 5, "three failures, then an accepted one, then none: {beats:?}");
        for pair in beats[1..].windows(2) {
            assert!((5.0..=10.01).contains(&(pair[1] - pair[0])), "{beats:?}");
        }
        let status = bench.status.borrow().clone();
        assert_eq!((status.accepted, status.failures_in_row, status.last_error), (2, 0, None));
    }

    #[tokio::test(start_paused = true)]
    async fn the_status_tells_why_the_last_beat_failed() {
        let bench = Bench::start(300, Duration::ZERO, |_| false);
        bench.at(1.0).await;
        let status = bench.status.borrow().clone();
        assert_eq!(status.failures_in_row, 1);
        assert!(status.last_error.unwrap().contains("Error 409: x"));
    }

    #[tokio::test(start_paused = true)]
    async fn stopping_ends_a_wait_and_a_beat_in_flight() {
        for at in [1.0, 100.0] {
            let bench = Bench::start(300, Duration::from_secs(50), |_| true);
            bench.at(at).await;
            bench.stop.send_replace(true);
            bench.task.await.unwrap();
            assert!(bench.begun.elapsed().as_secs_f64() < at + 0.1, "{at}");
        }
    }

    #[test]
    fn a_tiny_timeout_does_not_make_a_busy_loop() {
        let mut schedule = Schedule::new(Duration::from_millis(1));
        let now = Instant::now();
        assert_eq!(schedule.due(0), None);
        schedule.ended(now, true, 0, &mut Rng::with_seed(1));
        assert_eq!(schedule.due(0), Some(now + MIN_INTERVAL));
    }
}
