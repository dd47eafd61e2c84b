# SPDX-License-Identifier: MIT
# PTX as a string of C, without its comments.
/^[[:blank:]]*\(\/\/.*\)\{0,1\}$/d
s/.*/"&\\n"/
