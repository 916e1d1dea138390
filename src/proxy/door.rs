//! A turn at the door of its model: it goes in, or waits until its conversation fits.
//!
//! A client that is held is told nothing: a head that came early could not be taken back. Its body goes on coming as far as it
//! can be kept, and that it leaves is noticed as long as it does.

use pingora::protocols::http::ServerSession;
use pingora::{Error, Result};
use prometheus::HistogramVec;
use tokio::time::Instant;

use super::context::Context;
use super::downstream;
use super::refusal::Refusal;

/// Takes a slot for the turn. A hold that ends with one is counted in `holds`.
///
/// # Errors
/// Of the client, if it leaves while it waits; kvpin's own refusals.
pub async fn enter(session: &mut ServerSession, context: &mut Context, holds: &HistogramVec) -> Result<()> {
    let asked = context.ask().map_err(|refusal| context.refused(refusal))?;
    let Some(mut hold) = asked else { return Ok(()) };
    let since = Instant::now();
    let waited = loop {
        let awaits = Awaits::of(session, context);
        tokio::select! {
            () = hold.wait() => break Ok(()),
            came = from_client(session, context, awaits), if awaits != Awaits::Nothing => {
                if let Err(error) = came {
                    break Err(error);
                }
            }
        }
    };
    context.held = since.elapsed();
    waited?;
    drop(hold);
    context.acquire().map_err(|refusal| context.refused(refusal))?;
    if let Some(request) = &context.request {
        holds.with_label_values(&[&request.model.name]).observe(context.held.as_secs_f64());
    }
    Ok(())
}

/// What a held client is heard for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Awaits {
    Piece,
    Leaving,
    /// Behind a body that can't be kept, the end of a client can't be seen.
    Nothing,
}

impl Awaits {
    fn of(session: &mut ServerSession, context: &Context) -> Self {
        let has_room = context.body.as_ref().is_some_and(|body| body.has_room());
        match session.is_body_done() {
            true => Awaits::Leaving,
            false if has_room => Awaits::Piece,
            false if session.as_http2().is_some() => Awaits::Leaving,
            false => Awaits::Nothing,
        }
    }
}

/// Waits for the client: for a piece of its body where one is awaited, else for its leaving.
async fn from_client(session: &mut ServerSession, context: &mut Context, awaits: Awaits) -> Result<()> {
    let (Awaits::Piece, Some(body)) = (awaits, &mut context.body) else {
        return Err(downstream::left(session).await);
    };
    let piece = body.patience().wait(session.read_body_or_idle(false)).await.map_err(Error::into_down)?;
    let Some(piece) = piece else { return Ok(()) };
    if let Some(bytes_max) = body.is_over(session.body_bytes_read()) {
        return Err(context.refused(Refusal::BodyTooLarge { bytes_max }));
    }
    match body.keep(&piece) {
        true => Ok(()),
        false => Err(context.refused(Refusal::OutOfMemory)),
    }
}
