#!/bin/sh
# Prints the Python interpreters that work here, as `VERSION PATH`, one line for each supported
# version. One counts only if it runs and prints its version: what is called python3.12 may be a shim
# that fails. Real ones may lie below pyenv's root, off the PATH.
for version in 3.11 3.12 3.13; do
    roots=$(pyenv root 2>/dev/null)
    for candidate in "python$version" "$roots"/versions/"$version".*/bin/python python3 python; do
        path=$(command -v "$candidate" 2>/dev/null) || continue
        printed=$("$path" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
        if [ "$printed" = "$version" ]; then
            echo "$version $path"
            break
        fi
    done
done
