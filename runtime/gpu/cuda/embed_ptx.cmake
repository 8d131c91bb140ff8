# cmake -DPTX=FILE -DOUT=FILE -P embed_ptx.cmake: writes a source file with the text of the PTX in it.
file(READ ${PTX} text)
file(WRITE ${OUT} "#include \"runtime/gpu/cuda/ptx.h\"\n\nnamespace nzcl::gpu {\n\nconst char* const kPtx = R\"ptx(${text})ptx\";\n\n}  // namespace nzcl::gpu\n")
