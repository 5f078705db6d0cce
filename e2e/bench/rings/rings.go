// Package rings is what others use to find the owner of a key: well-known
// libraries, each behind one function, so that the bench can set the route table
// beside them. Nothing else may need them.
//
//	name        how it finds the owner                     cost grows with
//	groupcache  CRC-32, sorted ring, a map of its tokens   log of cells x virtual nodes
//	hashring    MD5, sorted ring, a map of its tokens      the same
//	rendezvous  the highest of one hash per cell           cells
//
// Keys are strings, as all three want them. What a library gets wrong is its own:
// the bench compares time, cmd/cellctl/sim compares how even and how steady.
package rings

import (
	"github.com/dgryski/go-rendezvous"
	"github.com/golang/groupcache/consistenthash"
	"github.com/serialx/hashring"
)

// Library is one way to find the owner of a key.
type Library struct {
	Name, Doc string
	Owner     func(key string) string
}

// All makes each library's ring of these cells, with so many virtual nodes where
// it has any.
func All(cells []string, vnodes int) []Library {
	group := consistenthash.New(vnodes, nil)
	group.Add(cells...)
	weights := make(map[string]int, len(cells))
	for _, c := range cells {
		weights[c] = vnodes
	}
	ring := hashring.NewWithWeights(weights)
	highest := rendezvous.New(cells, fnv1a)
	return []Library{
		{"groupcache", "github.com/golang/groupcache/consistenthash, CRC-32", group.Get},
		{"hashring", "github.com/serialx/hashring, MD5", func(key string) string { c, _ := ring.GetNode(key); return c }},
		{"rendezvous", "github.com/dgryski/go-rendezvous, FNV-1a", highest.Lookup},
	}
}

// fnv1a is hash/fnv's New64a without its garbage: the library is measured, not
// the hash that it was given.
func fnv1a(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h ^= uint64(s[i])
		h *= 1099511628211
	}
	return h
}
