//! The sockets on which connections arrive.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

const BACKLOG: i32 = 4096;

pub enum Listener {
    Tcp(std::net::TcpListener),
    Unix(UnixListener),
}

/// Returns the listener and its port: 0 for unix:PATH.
pub fn bind(host: &str, port: u16) -> io::Result<(Listener, u16)> {
    if let Some(path) = host.strip_prefix("unix:") {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.bind(&SockAddr::unix(path)?)?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        return Ok((Listener::Unix(socket.into()), 0));
    }
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let address = (host, port)
        .to_socket_addrs()?
        .next()
        .ok_or_else(|| io::Error::new(io::ErrorKind::AddrNotAvailable, format!("{host} has no address")))?;
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if matches!(address, SocketAddr::V6(six) if six.ip().is_unspecified()) {
        // [::] means every address, as in gRPC.
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    let listener: std::net::TcpListener = socket.into();
    let port = listener.local_addr()?.port();
    Ok((Listener::Tcp(listener), port))
}

/// The other end as gRPC writes it.
pub fn peer(address: SocketAddr) -> Arc<str> {
    match address {
        SocketAddr::V4(four) => format!("ipv4:{four}").into(),
        SocketAddr::V6(six) => match six.ip().to_ipv4_mapped() {
            Some(four) => format!("ipv4:{four}:{}", six.port()).into(),
            None => format!("ipv6:%5B{}%5D:{}", six.ip(), six.port()).into(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_written_as_grpc_writes_them() {
        assert_eq!(&*peer("127.0.0.1:5000".parse().unwrap()), "ipv4:127.0.0.1:5000");
        assert_eq!(&*peer("[::1]:5000".parse().unwrap()), "ipv6:%5B::1%5D:5000");
        assert_eq!(&*peer("[::ffff:10.0.0.1]:5000".parse().unwrap()), "ipv4:10.0.0.1:5000");
    }

    #[test]
    fn a_port_that_is_taken_is_refused() {
        let (_listener, port) = bind("127.0.0.1", 0).unwrap();
        assert_ne!(port, 0);
        assert_eq!(bind("127.0.0.1", port).err().unwrap().kind(), io::ErrorKind::AddrInUse);
    }
}
