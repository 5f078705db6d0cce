// Package sockets looks at processes from outside: whatever a process says about
// itself, the kernel knows whom it is connected to. Drills and tests use it to see
// that no byte goes past a border.
//
//	/proc/PID/fd          socket:[inode] ...  ─┐
//	/proc/PID/net/tcp,6   inode, addresses    ─┴─ the process's sockets
//
// Linux only; the processes must be the caller's, or the caller root.
//
//	what                             then
//	a process is gone                it has no entry
//	a process of somebody else       fs.ErrPermission
//	a kernel without IPv6            IPv4 alone
//	a socket is closed meanwhile     it's left out
//	the kernel gives a row twice     it counts once
package sockets
