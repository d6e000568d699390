//! Measures the downloader against a server on the loopback address, plain and over TLS:
//! `cargo run --release -p ferric-agent --example download_speed [MB]`.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use ferric_agent::config::{Config, TlsCurve, TlsVersion};
use ferric_agent::http::download::Downloader;
use ferric_agent::tls::{CertificateRequest, generate, server_config_from_pem};
use ferric_disk::image::source::{Fetch as _, FetchRequest};

const PIECE_BYTES: usize = 1024 * 1024;

fn main() -> Result<(), Box<dyn Error>> {
    let megabytes: usize = std::env::args().nth(1).map_or(Ok(200), |text| text.parse())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    // As in the agent: one thread for everything asynchronous, and a blocking one that reads.
    let _runtime_thread = std::thread::spawn(move || runtime.block_on(std::future::pending::<()>()));
    let config = Config { insecure: true, ..Config::default() };
    let downloader = Downloader::new(&config, handle)?;
    for tls in [false, true] {
        let port = serve(megabytes * PIECE_BYTES, tls)?;
        let scheme = if tls { "https" } else { "http" };
        let url = format!("{scheme}://127.0.0.1:{port}/image");
        for _ in 0..3 {
            let begun = Instant::now();
            let mut source = downloader.open(&FetchRequest { url: url.clone(), ..FetchRequest::default() })?;
            let mut reader = source.stream(0)?;
            let mut piece = vec![0; PIECE_BYTES];
            let mut total = 0;
            loop {
                match reader.read(&mut piece)? {
                    0 => break,
                    count => total += count,
                }
            }
            let seconds = begun.elapsed().as_secs_f64();
            let line =
                format!("{scheme}: {total} bytes in {seconds:.3} s, {:.0} MB/s\n", megabytes_in(total) / seconds);
            std::io::stdout().write_all(line.as_bytes())?;
        }
    }
    Ok(())
}

fn megabytes_in(bytes: usize) -> f64 {
    f64::from(u32::try_from(bytes / 1000).unwrap_or(u32::MAX)) / 1000.0
}

/// Starts a server that answers every request with `length` bytes; its port.
fn serve(length: usize, tls: bool) -> Result<u16, Box<dyn Error>> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    let made = generate(&CertificateRequest {
        hostname: "speed",
        address: IpAddr::V4(Ipv4Addr::LOCALHOST),
        curve: TlsCurve::P256,
        now: SystemTime::now(),
        clock_skew: std::time::Duration::ZERO,
    })?;
    let config = server_config_from_pem(&made.certificate_pem, made.key_pem.expose(), TlsVersion::V1_3, None)?;
    let _server = std::thread::spawn(move || -> std::io::Result<()> {
        loop {
            let (stream, _) = listener.accept()?;
            // A reader that goes away is no reason to stop serving.
            let _done = if tls {
                let session = rustls::ServerConnection::new(Arc::clone(&config)).map_err(std::io::Error::other)?;
                answer(rustls::StreamOwned::new(session, stream), length)
            } else {
                answer(stream, length)
            };
        }
    });
    Ok(port)
}

fn answer(mut stream: impl Read + Write, length: usize) -> std::io::Result<()> {
    let mut request = [0; 4096];
    let _head = stream.read(&mut request)?;
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n")?;
    let piece = vec![0x5a; PIECE_BYTES];
    for _ in 0..length / PIECE_BYTES {
        stream.write_all(&piece)?;
    }
    stream.flush()
}
