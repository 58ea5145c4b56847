//! TLS by rustls: certificates of the server, and of its clients.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoClientAuth, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};

/// Err: a sentence that says what is wrong.
pub fn server_config(
    certificate_chain: &[u8],
    key: &[u8],
    client_ca: Option<&[u8]>,
    client_auth: &str,
) -> Result<Arc<ServerConfig>, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let chain = certificates(certificate_chain).map_err(|error| format!("the certificate cannot be used: {error}"))?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| format!("the key cannot be used: {error}"))?;
    let verifier = match (client_auth, client_ca) {
        ("none", _) => Arc::new(NoClientAuth) as Arc<_>,
        ("optional", None) => Arc::new(NoClientAuth) as Arc<_>,
        ("optional" | "required", Some(authority)) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(authority).map_err(|error| format!("the CA of the clients cannot be used: {error}"))? {
                roots.add(certificate).map_err(|error| format!("the CA of the clients cannot be used: {error}"))?;
            }
            let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
            let builder = if client_auth == "optional" { builder.allow_unauthenticated() } else { builder };
            builder.build().map_err(|error| format!("the CA of the clients cannot be used: {error}"))?
        }
        ("required", None) => {
            return Err("client certificates are required, but no CA says which ones are good".to_owned());
        }
        _ => return Err(format!("client_auth is {client_auth:?}; it must be none, optional or required")),
    };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .map_err(|error| format!("the certificate and its key cannot be used: {error}"))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(|error| error.to_string())?;
    if found.is_empty() { Err("there is no certificate in it".to_owned()) } else { Ok(found) }
}
