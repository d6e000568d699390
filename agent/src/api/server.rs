//! Accepting connections and answering requests.
//!
//! Each connection has a task of its own, so that a bad client hurts nobody else: the TLS handshake, the request
//! head and the body each have a time limit, and the number of connections is bounded, in all and
//! from one address.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue, LOCATION, SERVER};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tracing::{debug, info, warn};

use super::fault::ApiError;
use super::places::Places;
use super::routes::{Route, find};
use super::{Body, commands, discovery, events, json, status, token, whole};
use crate::app::App;

/// How long a TLS handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(15);
/// How long the head of a request may take, and how long an idle connection is kept.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Largest request head.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// How long running answers may take after the API has been told to stop.
const GRACE: Duration = Duration::from_secs(5);

/// Serves the API until `stop` turns true; answers under way are finished first.
pub async fn serve(app: Arc<App>, listener: TcpListener, tls: Option<TlsAcceptor>, mut stop: watch::Receiver<bool>) {
    let places = Places::default();
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = told_to_stop(&mut stop) => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors or memory: give running connections time to end.
                warn!(%error, "accepting a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        let peer = peer.ip().to_canonical();
        let Some(place) = places.take(peer) else {
            debug!(%peer, "too many connections; one is closed");
            continue;
        };
        let (app, tls, stop) = (app.clone(), tls.clone(), stop.clone());
        connections.spawn(async move {
            connection(app, stream, tls, stop, peer.to_string()).await;
            drop(place);
        });
    }
    drop(listener);
    let drained = tokio::time::timeout(GRACE, async { while connections.join_next().await.is_some() {} }).await;
    if drained.is_err() {
        warn!("closing connections that did not end within {} s", GRACE.as_secs());
    }
}

/// Ends when the API is to stop, or when nobody is left who could say so.
async fn told_to_stop(stop: &mut watch::Receiver<bool>) {
    let _said_so = stop.wait_for(|stop| *stop).await.is_ok();
}

async fn connection(
    app: Arc<App>,
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    stop: watch::Receiver<bool>,
    peer: String,
) {
    if let Err(error) = stream.set_nodelay(true) {
        debug!(%error, peer, "setting TCP_NODELAY");
    }
    match tls {
        None => http(app, stream, stop, peer, "http").await,
        Some(acceptor) => match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => http(app, stream, stop, peer, "https").await,
            Ok(Err(error)) => info!(%error, peer, "TLS handshake failed"),
            Err(_elapsed) => info!(peer, "TLS handshake took too long"),
        },
    }
}

async fn http<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    app: Arc<App>,
    stream: S,
    mut stop: watch::Receiver<bool>,
    peer: String,
    scheme: &'static str,
) {
    let service = service_fn(|request| {
        let (app, peer) = (app.clone(), peer.clone());
        async move { Ok::<_, std::convert::Infallible>(answer(app, request, scheme, &peer).await) }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    let mut serving = std::pin::pin!(serving);
    let ended = tokio::select! {
        ended = serving.as_mut() => ended,
        () = told_to_stop(&mut stop) => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = ended {
        debug!(%error, peer, "connection ended early");
    }
}

async fn answer(app: Arc<App>, request: Request<Incoming>, scheme: &str, peer: &str) -> Response<Body> {
    let began = Instant::now();
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let mut response = match respond(&app, request, scheme).await {
        Ok(response) => response,
        Err(error) => error.response(),
    };
    response.headers_mut().insert(SERVER, HeaderValue::from_static("ironic-python-agent"));
    if method == Method::HEAD {
        *response.body_mut() = whole("");
    }
    // The query is left out: it holds the token.
    info!("{peer} {method} {path} {} {} ms", response.status().as_u16(), began.elapsed().as_millis());
    response
}

async fn respond(app: &Arc<App>, request: Request<Incoming>, scheme: &str) -> Result<Response<Body>, ApiError> {
    let (parts, body) = request.into_parts();
    let query = parts.uri.query();
    let host = parts.headers.get(HOST).and_then(|host| host.to_str().ok());
    let host = host.or_else(|| parts.uri.authority().map(http::uri::Authority::as_str)).unwrap_or("localhost");
    let root = format!("{scheme}://{host}");
    let route = find(&parts.method, parts.uri.path())?;
    let authorised = || token::check(app.token().as_ref(), query);
    match route {
        Route::Root => Ok(json(StatusCode::OK, &discovery::root(&root))),
        Route::V1 => Ok(json(StatusCode::OK, &discovery::v1(&root))),
        Route::Status => Ok(json(StatusCode::OK, &status::document(app))),
        Route::AddSlash => Ok(redirect(&root, parts.uri.path(), query)),
        Route::ListCommands => {
            authorised()?;
            Ok(json(StatusCode::OK, &commands::list(app)))
        }
        Route::RunCommand => {
            authorised()?;
            Ok(json(StatusCode::OK, &commands::run(app, &parts.headers, body, query).await?))
        }
        Route::ShowCommand(id) => {
            authorised()?;
            Ok(json(StatusCode::OK, &commands::show(app, id, query).await?))
        }
        Route::WatchCommand(id) => {
            authorised()?;
            events::watch(app, id)
        }
    }
}

/// 308 with an absolute address that keeps the query, as clients of the reference agent expect; the method and the
/// body stay.
fn redirect(root: &str, path: &str, query: Option<&str>) -> Response<Body> {
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    let target = format!("{root}{path}/{query}");
    let mut response = match HeaderValue::from_str(&target) {
        Ok(location) => {
            let mut response =
                Response::new(whole("<!doctype html><title>Redirecting...</title><p>Add a slash.</p>\n"));
            response.headers_mut().insert(LOCATION, location);
            response
        }
        Err(_not_a_header) => return ApiError::Path.response(),
    };
    *response.status_mut() = StatusCode::PERMANENT_REDIRECT;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    response
}
